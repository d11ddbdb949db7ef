// The training loop. It decides what happens in which order. The strategy decides how ranks compute and agree
// (parallel/strategy.h).
#pragma once

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
#include "starling/parallel/replica/replica.h"
#include "starling/parallel/strategy.h"
#include "starling/spec/run_spec.h"
#include "starling/train/fit_options.h"
#include "starling/train/process_services.h"
#include "starling/train/rank_gather.h"
#include "starling/train/step_times.h"

namespace starling {

// How long a run is, in steps.
struct TrainLength {
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 1;
  int64_t first_step = 0;  // updates that an earlier run or generation has made
};

// The sums of a run so far. A new generation that takes over after a loss continues them.
struct TrainProgress {
  std::optional<Nanoseconds> start;
  StepTimes times;
  std::deque<double> losses;  // of the last steps
  uint64_t bytes_sent = 0;    // by this rank
  uint64_t step_sent = 0;     // the part of bytes_sent between the start and the end of steps
  RunResult result;
  EvalDone evaluation;           // the last evaluation, complete if this rank led at that time
  Nanoseconds last_end{};        // the end of the last whole step
  int64_t meetings = 0;          // how often the ranks have told each other their requests
  int64_t closed_step = -1;      // the last step whose evaluation and checkpoint, if due, are done
  Nanoseconds last_save{};       // when the last checkpoint began, or the run
  bool saves = false;            // the last step gets a checkpoint
  double unreported_save_s = 0;  // seconds by which checkpoints delay the next step; not yet reported
};

// The outcome of a loss that a rank survives with the same strategy, on a larger share of the samples
// (servers).
struct Takeover {
  std::vector<int> lost;  // the ranks that were lost since the last call
  int64_t left = 0;       // the number of ranks that are left
};

// What the loop asks of the run that it belongs to.
class TrainHooks {
 public:
  virtual ~TrainHooks() = default;
  // Saves a checkpoint of the state after `step`. Called on every rank after consensus(). `must` is true if
  // the run ends with this step or somebody asked for this checkpoint. Otherwise it may be skipped while an
  // earlier one is being written. Does not throw for a full disk.
  virtual void save_checkpoint(int64_t step, bool must) = 0;
  // Returns true if this rank writes checkpoints and is not writing one.
  virtual bool ready_to_save() { return false; }
  // The statistics that the result reports. Called once, at the end. Collective.
  virtual StrategyStats statistics() = 0;
  // Called when StepReport::lost has grown or StepReport::redo is set. `step` is the last step that was made.
  // The loader may be replaced. Afterwards the loader must return the batch of step + 1.
  virtual Takeover after_loss(int64_t step) = 0;
  // Called after each step, with the report of the last attempt. The loader may be replaced. Afterwards the
  // loader must return the batch of step + 1.
  virtual void step_done(int64_t /*step*/, const StepReport& /*report*/) {}
  // Called once, after statistics(): the other ranks do not need the strategy of this rank any more.
  virtual void leave() = 0;
};

// What the loop works with. Everything outlives train().
struct TrainParts {
  Strategy& strategy;
  TrainHooks& hooks;
  std::unique_ptr<Loader>& loader;  // after_loss() and step_done() may replace it
  const Source* test = nullptr;     // null: no evaluation
  Group& group;
  RankGather& rank_gather;
  const ProcessServices& process;
  // True if a rank was lost before all ranks had finished evaluation and checkpoint of length.first_step.
  // They come first then.
  bool close_first = false;
  // The ranks that divide the samples of an evaluation; null stands for rank_gather.
  RankGather* evaluators = nullptr;
  const FitOptions& options;  // metrics and the callback after each epoch
};

// Returns the number of steps that the configuration asks for. An epoch has the whole global batches of
// `data`. Errors: ConfigError if the run has no step, for example because `data` is smaller than a global
// batch.
TrainLength train_length(const RunSpec& spec, const Source& data);

// Runs the steps after length.first_step, evaluates after every epoch and at the end, and returns the
// summary. Collective. The summary is complete on the rank where parts.rank_gather.leads() is true. Errors
// are those of the strategy and the loader. After an error `progress` is as it was after the last whole step.
RunResult train(const RunSpec& spec, const TrainLength& length, const TrainParts& parts,
                TrainProgress& progress);

}  // namespace starling
