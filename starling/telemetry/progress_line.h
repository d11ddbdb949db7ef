// The progress line as text: what it says, and what it leaves out when the terminal is narrow.
#pragma once

#include <string>

#include "starling/telemetry/event.h"

namespace starling {

// What the line knows beside the step itself.
struct ProgressScale {
  int64_t total_steps = 0;  // 0: not known
  int64_t ranks = 1;
  bool verbose = false;  // adds the learning rate and the times of the step
  bool color = false;
};

// "step 128/640  20 %  loss 0.3127  4,210 samples/s  waiting 3.1 % (slowest: rank 1)  ETA 12 s" in at most
// `columns` columns (0: no limit). Fields are left out in this order until it fits: times of the step,
// learning rate, epoch, slowest rank, percentage, waiting share, samples/s, ETA; step and loss are cut at
// last. Waiting = (exposed communication + data wait) / step time.
std::string progress_line(const StepDone& step, const ProgressScale& scale, int columns);

}  // namespace starling
