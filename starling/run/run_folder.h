// The folder of a run: where it resumes from, its checkpoints, its final weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>

#include "starling/parallel/strategy.h"
#include "starling/run/choices.h"
#include "starling/run/surroundings.h"
#include "starling/spec/run_spec.h"
#include "starling/train/checkpoint.h"

namespace starling {

// Every member is collective over the group; the rank that leads writes, all read.
class RunFolder {
 public:
  // Finds the checkpoint to resume from (run.resume): the newest whole one of the folder (a torn or damaged one is
  // skipped with a warning), the one that PATH names, or none; with `never` checkpoints of an earlier run are moved
  // aside. Errors: ConfigError where the checkpoint's configuration differs (first difference named), or PATH holds none.
  RunFolder(const RunSpec& spec, const Surroundings& around);
  ~RunFolder();

  int64_t first_step() const { return resumed_ ? resumed_->step : 0; }
  // Choices of the run that is resumed; none where there is none.
  Choices earlier_choices() const { return resumed_ ? resumed_->choices : Choices{}; }
  // Puts the checkpoint's state into the strategy. Errors: Error(kCheckpoint) where it is another model's.
  void restore(Strategy& strategy) const;

  // Takes a snapshot and writes it on a thread of its own; waits for the one before. A failure is a CheckpointDone event
  // with its error: training goes on and the last good checkpoint stays.
  void save_checkpoint(Strategy& strategy, const Choices& choices, int64_t step, int64_t steps_per_epoch,
                       int64_t total_steps);
  // Waits for the last checkpoint and writes the weights to train.save; `state` makes them where they are asked for. Errors:
  // Error naming the path (disk full).
  void finish(const std::function<StrategyState()>& state);

 private:
  std::filesystem::path find_checkpoint() const;

  const RunSpec& spec_;
  const Surroundings& around_;
  std::filesystem::path path_;
  std::optional<CheckpointState> resumed_;
  std::future<void> writing_;
};

}  // namespace starling
