// ProcessServices holds what the training of a rank needs from its process.
#pragma once

#include <atomic>

#include "starling/base/clock.h"
#include "starling/telemetry/sink.h"
#include "starling/train/run_requests.h"

namespace starling {

// A value that refers to objects of the process. They outlive the training.
struct ProcessServices {
  EventSink& sink;  // of this rank; only the rank that leads shows progress and writes files
  const Clock& clock;
  // Set by SIGTERM, SIGINT or SIGHUP (run/stop_signal.h). The run then saves its state and ends without a
  // test, after a step on which the ranks agree.
  const std::atomic<bool>& stop;
  RunRequests* requests = nullptr;  // that signals bring to this process; null: none
};

}  // namespace starling
