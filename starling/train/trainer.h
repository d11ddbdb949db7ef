// The training loop. It owns the order of things; the strategy owns how ranks compute and agree (parallel/strategy.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/loader.h"
#include "starling/parallel/replica.h"
#include "starling/parallel/strategy.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/sink.h"

namespace starling {

struct TrainLength {
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 1;
  int64_t first_step = 0;  // updates already done (resume)
};

// What the loop works with. Everything outlives train().
struct TrainParts {
  Strategy& strategy;
  Replica& evaluated;  // the model that evaluation and saving see after strategy.consensus()
  Loader& loader;
  const Source* test = nullptr;  // null: no evaluation
  Group& group;
  EventSink& sink;  // this rank's; ranks other than 0 give a silent one
  const Clock& clock;
  const std::atomic<bool>& stop;  // set by SIGTERM: saves and ends after the step that all ranks agree on
  // Saves a checkpoint of the state after `step`; called on every rank after consensus(). Must not throw for a full disk.
  std::function<void(int64_t step)> save_checkpoint;
  // The strategy's fingerprint, asked for once at the end. Collective. Empty: none.
  std::function<std::map<std::string, double>()> fingerprint;
  // Who share out the samples of an evaluation among them; null: group.
  Group* evaluators = nullptr;
};

// Number of steps and epochs that the spec asks for. Errors: ConfigError when it comes to nothing.
TrainLength train_length(const RunSpec& spec, int64_t steps_per_epoch);

// Collective. Runs the steps after length.first_step, evaluates after every epoch and at the end, and returns the
// summary, complete on rank 0. Errors are those of the strategy and the loader.
RunResult train(const RunSpec& spec, const TrainLength& length, const TrainParts& parts);

}  // namespace starling
