// RunFolder is the folder of a run. It covers the configuration, the checkpoint that the run resumes from,
// the checkpoints that the run writes, the trained weights and the result.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "starling/parallel/strategy.h"
#include "starling/report/timeline.h"
#include "starling/run/choice/choices.h"
#include "starling/run/run_environment.h"
#include "starling/spec/run_spec.h"
#include "starling/train/checkpoint.h"
#include "starling/train/checkpoint_writer.h"
#include "starling/train/trainer.h"

namespace starling {

// Returns a checkpoint of the strategy's state. The other fields of the checkpoint are unset.
CheckpointState checkpoint_of(const StrategyState& state);

// Checks what a run needs before it changes its folder. The folder of the --save file must be writable. The
// checkpoint that --resume names must be whole and of this configuration. Errors: ConfigError and Error
// (kCheckpoint) that name the flag or the checkpoint.
void require_startable(const RunSpec& spec);

// All ranks of the group make the same calls. The constructor is collective, and finish() is if its `state`
// is. The rank that leads writes, and all ranks read.
class RunFolder {
 public:
  // Finds the checkpoint to resume from, as run.resume says: the newest whole checkpoint of the folder, the
  // one that PATH names, or none. With `never` the checkpoints of an earlier run are moved aside. Otherwise
  // the folder stays as it is. Errors: ConfigError that names the first difference if the checkpoint's
  // configuration differs, or if PATH holds no checkpoint; Error (kCheckpoint) if there are checkpoints and
  // all are damaged, or a newer Starling wrote the newest.
  RunFolder(const RunSpec& spec, const RunEnvironment& environment);
  // Begins the run in the folder: writes config.toml, removes the result of an earlier start, and renames
  // checkpoints above the one that the run continues (set_aside_above()). Call it when nothing can refuse the
  // start any more, for example after restore(). Further calls do nothing.
  void begin();
  int64_t first_step() const { return resumed_ ? resumed_->step : 0; }
  // Returns the choices of the run that is resumed, or nothing.
  Choices earlier_choices() const { return resumed_ ? resumed_->choices : Choices{}; }
  // The checkpoint that the run resumes from, or null.
  const CheckpointState* resumed() const { return resumed_ ? &*resumed_ : nullptr; }
  // Puts the checkpoint's state into the strategy. Errors: Error(kCheckpoint) if the checkpoint belongs to
  // another model.
  void restore(Strategy& strategy) const;

  // Writes a checkpoint on a thread. Its tensors must not change. The seed and the configuration are added.
  // If the checkpoint before is still being written, this one is skipped with a warning, or written after it
  // if `last` is true. A failure becomes a CheckpointDone event with the error: training goes on, and the
  // last good checkpoint stays. It is a failure if another process has taken over the run folder.
  void save_checkpoint(CheckpointState checkpoint, bool last);
  // Returns true if this rank writes checkpoints and is not writing one.
  bool ready_to_save() const { return !path_.empty() && environment_.leads() && !writer_.busy(); }
  // Writes the weights to train.save and, unless the run was interrupted, to model.safetensors in the folder,
  // after the last checkpoint. `state` returns the weights and is called only if they are needed. `metadata`
  // is added to model.safetensors.
  //
  // If `together` is true, all ranks of the group call the function, and no rank returns before the leading
  // rank has written its files. The ranks may then share collectives at once, or end: launchers such as srun
  // --kill-on-bad-exit end all ranks when the first one ends with the status of an interruption. Otherwise
  // only the leading rank waits.
  //
  // Errors on the rank that writes: Error (kCheckpoint) that names the path, for example if the disk is full.
  // The error of the run's last checkpoint is thrown, too, after the weights are written. A rank that does
  // not hold the lock of the run folder writes nothing into it. It still writes train.save if the file is
  // outside the folder and no other rank of this run leads. If another run has used the folder, or if that is
  // not known, the name of the file gets the first 8 digits of the incarnation, as in
  // weights.0123abcd.safetensors.
  void finish(const std::function<StrategyState()>& state, bool interrupted, bool together,
              const std::map<std::string, std::string>& metadata);
  // Reports the result as an event, and writes result.json and, if there is one, timeline.json. If a file
  // cannot be written, a warning says why. The events are flushed, for which a rank waits up to 10 s.
  // `together` is as in finish().
  void report(const RunResult& result, const std::optional<StepTimeline>& timeline, bool together) const;
  // Returns true if this rank has written the checkpoint of `step`. Call it after finish().
  bool saved(int64_t step) const { return saved_ == step; }

 private:
  enum class Holding { kThisRank, kNobody, kOtherRank, kOtherRun };

  std::filesystem::path find_checkpoint() const;
  bool write_configuration(const Say& say) const;
  void write_result(const RunResult& result) const;
  void write_timeline(const StepTimeline& timeline) const;
  void write_record(const std::function<void()>& write) const;
  void write(const CheckpointState& checkpoint);
  bool attempt(const std::function<void()>& write);
  Holding holding();
  void save_weights(Holding holding, const TensorMap& tensors);
  void begin_to_lead();
  IoStep lock_asked() const;
  void write_weights_files(const StrategyState& weights, bool keeps,
                           const std::map<std::string, std::string>& metadata);

  const RunSpec& spec_;
  const RunEnvironment& environment_;
  std::filesystem::path path_;
  std::optional<CheckpointState> resumed_;
  std::filesystem::path found_;  // the folder of this checkpoint
  bool begun_ = false;
  bool configured_ = false;  // this rank has prepared the folder, as the first leading rank or a later one
  int64_t saved_ = -1;       // step of the last written checkpoint; the writer's thread owns it until it ends
  std::string
      unwritten_;    // why the last checkpoint or weights are missing, or empty. It has the owner of saved_.
  Lineage lineage_;  // of the checkpoints that this start writes; its epoch is that of the lock
  // Copies for the thread that writes: a new generation replaces `environment_`.
  EventSink& sink_;
  const Clock& clock_;
  const std::function<int64_t()> lock_epoch_;
  const std::function<void()> require_lock_;
  CheckpointWriter writer_;  // the last member, because its thread uses all other members
};

}  // namespace starling
