// The training loop. It owns the order of things; the strategy owns how ranks compute and agree (parallel/strategy.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/loader.h"
#include "starling/parallel/replica.h"
#include "starling/parallel/strategy.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/sink.h"
#include "starling/train/step_times.h"
#include "starling/train/tally.h"

namespace starling {

struct TrainLength {
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 1;
  int64_t first_step = 0;  // updates already done (resume)
};

// What a run has added up so far. Where ranks were lost and a new generation takes over in the middle, it goes on with it.
struct TrainProgress {
  std::optional<Nanoseconds> start;
  StepTimes times;
  std::deque<double> losses;  // of the last steps
  uint64_t bytes_sent = 0;    // by this rank
  uint64_t step_sent = 0;     // between the begin and the end of steps
  RunResult result;
  EvalDone evaluation;       // the last; complete where this rank led then
  Nanoseconds last_end{};    // of the last whole step
  int64_t closed_step = -1;  // the last step after which evaluation and checkpoint, where due, are done
};

// Ranks were lost and this one goes on with the same strategy (server modes), on a larger share of the samples.
struct Takeover {
  std::vector<int> lost;  // since the last time
  int64_t left = 0;
};

// What the loop works with. Everything outlives train().
struct TrainParts {
  Strategy& strategy;
  Replica& evaluated;               // the model that evaluation and saving see after strategy.consensus()
  std::unique_ptr<Loader>& loader;  // after_loss() may put another one there
  const Source* test = nullptr;     // null: no evaluation
  Group& group;
  Tally& tally;
  EventSink& sink;  // this rank's; silent on those that do not lead
  const Clock& clock;
  const std::atomic<bool>& stop;  // set by SIGTERM: saves and ends after the step that all ranks agree on
  // Saves a checkpoint of the state after `step`; called on every rank after consensus(). Must not throw for a full disk.
  std::function<void(int64_t step)> save_checkpoint = {};
  // The strategy's fingerprint, asked for once at the end. Collective. Empty: none.
  std::function<std::map<std::string, double>()> fingerprint = {};
  // Called when StepReport::lost has grown, with the last step that was made: the loader's next batch is to be that of the
  // step after it. Empty: no rank is lost without the end of train().
  std::function<Takeover(int64_t step)> after_loss = {};
  // Called once, after the fingerprint: the strategy is not needed by the others any more. Empty: nothing to do.
  std::function<void()> leave = {};
  // Evaluation and checkpoint of length.first_step were not finished by all before a rank was lost: they come first.
  bool close_first = false;
  // Who share out the samples of an evaluation among them; null: tally.
  Tally* evaluators = nullptr;
};

// Number of steps and epochs that the spec asks for. Errors: ConfigError when it comes to nothing.
TrainLength train_length(const RunSpec& spec, int64_t steps_per_epoch);

// Collective. Runs the steps after length.first_step, evaluates after every epoch and at the end, and returns the
// summary, complete where parts.tally.leads(). Errors are those of the strategy and the loader; `progress` is then as after
// the last whole step.
RunResult train(const RunSpec& spec, const TrainLength& length, const TrainParts& parts,
                TrainProgress& progress);

}  // namespace starling
