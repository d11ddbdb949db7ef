#include "starling/run/folder/run_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "starling/base/atomic_file.h"
#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/job/folder_lock.h"
#include "starling/job/wait_together.h"
#include "starling/nn/safetensors/safetensors_index.h"
#include "starling/run/folder/earlier_files.h"
#include "starling/run/folder/run_weights.h"
#include "starling/run/ranks/broadcast_text.h"
#include "starling/spec/print.h"
#include "starling/telemetry/to_json.h"
#include "starling/telemetry/unix_time.h"
#include "starling/train/checkpoint_match.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  AtomicFile file(path.string());
  file.write(text.data(), text.size());
  file.commit();
}

void warn(const RunEnvironment& environment, const std::string& text) {
  environment.process.sink.emit(Message{Severity::kWarning, environment.group.rank(), text});
}

// Puts `part` into the name of a file of weights, before its end: weights.PART.safetensors.
fs::path with_part_of_name(const fs::path& file, const std::string& part) {
  const std::string name = file.filename().string();
  const size_t end = name.ends_with(kSafetensorsIndexEnd) ? name.size() - kSafetensorsIndexEnd.size()
                                                          : file.stem().string().size();
  return file.parent_path() / (name.substr(0, end) + "." + part + name.substr(end));
}

// Renames the checkpoints of an earlier run. Otherwise they would count as checkpoints of the new run.
void set_aside(const fs::path& run_dir) {
  const fs::path checkpoints = run_dir / "checkpoints";
  std::error_code ignored;
  if (fs::is_empty(checkpoints, ignored)) return;
  for (int i = 1; fs::exists(checkpoints); ++i) {
    const fs::path aside = run_dir / fmt::format("checkpoints.{}", i);
    if (!fs::exists(aside)) fs::rename(checkpoints, aside);
  }
}

// Checks before training, and not after it, that the file can be written.
void require_folder_of(const std::string& file) {
  const fs::path parent = fs::absolute(file).parent_path();
  if (::access(parent.c_str(), W_OK | X_OK) == 0) return;
  throw ConfigError("--save",
                    fmt::format("{} cannot be written: {}: {}; make the folder, or give another path", file,
                                parent.string(), std::strerror(errno)));
}

[[noreturn]] void refuse_empty(const std::string& resume) {
  throw ConfigError("--resume", fmt::format("{} holds no whole checkpoint; give a run folder or one of its "
                                            "checkpoints/step-… folders, or --resume never",
                                            resume));
}

// Refuses a folder that has checkpoints, none of which can be used. Those that cannot be read now may be
// whole, so the remedy is not to start anew.
[[noreturn]] void refuse_all(const fs::path& folder, const std::vector<PassedCheckpoint>& passed) {
  std::vector<std::string> texts;
  bool unreadable = false;
  for (const PassedCheckpoint& checkpoint : passed) {
    texts.push_back(checkpoint.text);
    unreadable = unreadable || checkpoint.unreadable;
  }
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("{}: {}, and nothing was changed. {}, or give another checkpoint by --resume PATH{}. {}",
                  folder.string(),
                  unreadable ? "no checkpoint can be read as a whole" : "every checkpoint is damaged",
                  unreadable ? "Start again when the files can be read" : "Restore one from a copy",
                  unreadable ? "" : ". --resume never starts anew at step 0", fmt::join(texts, ". ")));
}

// Carries out this rank's work. If `together` is true, all ranks of the group wait for each other's work.
void carry_out(Group& group, bool together, const std::function<void()>& work) {
  if (together) return wait_together(group, work);
  work();
}

}  // namespace

CheckpointState checkpoint_of(const StrategyState& state) {
  CheckpointState checkpoint;
  checkpoint.step = state.step;
  TensorMap model = state.parameters;
  model.insert(state.buffers.begin(), state.buffers.end());
  checkpoint.model = whole_tensors(model);
  for (const auto& [name, tensor] : state.optimizer) {  // "momentum/fc1.weight"
    const size_t slash = name.find('/');
    checkpoint.optimizer[name.substr(slash + 1)][name.substr(0, slash)] = {tensor, {}, {}};
  }
  return checkpoint;
}

void require_startable(const RunSpec& spec) {
  if (!spec.train.save.empty()) require_folder_of(spec.train.save);
  const std::string& resume = spec.run.resume;
  if (resume == "auto" || resume == "never") return;
  fs::path folder = resume;
  if (!may_exist(folder / "manifest.json")) {
    std::vector<PassedCheckpoint> passed;
    const std::optional<CheckpointFolder> found = newest_whole(resume, &passed);
    if (!found && !passed.empty()) refuse_all(resume, passed);
    if (!found) refuse_empty(resume);
    folder = found->path;
  }
  require_same_configuration(folder, read_checkpoint(folder), spec);
}

RunFolder::RunFolder(const RunSpec& spec, const RunEnvironment& environment)
    : spec_(spec),
      environment_(environment),
      path_(environment.kept.folder),
      lineage_{environment.kept.incarnation, environment.kept.incarnation, 0, {}},
      sink_(environment.process.sink),
      clock_(environment.process.clock),
      lock_epoch_(environment.kept.lock_epoch),
      require_lock_(environment.kept.require_lock) {
  std::string found;
  if (environment.group.rank() == 0 && !spec.train.save.empty()) require_folder_of(spec.train.save);
  if (environment.group.rank() == 0) found = find_checkpoint().string();
  found = broadcast_text(environment.group, found);
  if (!found.empty()) {
    resumed_ = read_checkpoint(found);
    require_same_configuration(found, *resumed_, spec);
  }
  if (found.empty()) return;
  found_ = found;
  if (environment.kept.note_continued) environment.kept.note_continued(found);
  lineage_ = continued(resumed_->lineage, resumed_->step, environment.kept.incarnation, 0);
  if (environment.group.rank() != 0) return;
  environment.process.sink.emit(
      Message{Severity::kInfo, 0, fmt::format("resuming after step {} from {}", resumed_->step, found)});
}

void RunFolder::begin() {
  if (std::exchange(begun_, true)) return;
  if (path_.empty() || !environment_.leads()) return;
  const Say say = [this](const std::string& text) { warn(environment_, text); };
  std::error_code ignored;
  fs::remove(path_ / kResultFile, ignored);  // of an earlier start of this run
  configured_ = write_configuration(say);
  if (resumed_ && is_inside_run(path_, found_)) set_aside_above(path_, resumed_->step, say);
}

fs::path RunFolder::find_checkpoint() const {
  const std::string& resume = spec_.run.resume;
  if (resume == "never") {
    if (!path_.empty()) set_aside(path_);
    return {};
  }
  const bool own = resume == "auto";
  if (own && (path_.empty() || !fs::exists(path_))) return {};
  if (!own && may_exist(fs::path(resume) / "manifest.json")) return resume;
  const fs::path folder = own ? path_ : fs::path(resume);
  std::vector<PassedCheckpoint> passed;
  const std::optional<CheckpointFolder> found = newest_whole(folder, &passed);
  if (found) {
    const bool renamed = !path_.empty() && is_inside_run(path_, found->path);  // set_aside_above() reports it
    for (const PassedCheckpoint& checkpoint : passed) {
      if (!renamed || checkpoint.unreadable)
        warn(environment_, checkpoint.text + "; trying the checkpoint before it");
    }
    return found->path;
  }
  if (!passed.empty()) refuse_all(folder, passed);
  if (own) return {};
  refuse_empty(resume);
}

void RunFolder::restore(Strategy& strategy) const {
  if (!resumed_) return;
  StrategyState state;
  state.step = resumed_->step;
  for (const auto& [name, stored] : resumed_->model) state.parameters[name] = stored.value;
  state.buffers = state.parameters;  // each part looks up its own names
  for (const auto& [name, states] : resumed_->optimizer) {
    for (const auto& [kind, stored] : states) state.optimizer[kind + "/" + name] = stored.value;
  }
  strategy.load_state(state);
}

void RunFolder::save_checkpoint(CheckpointState checkpoint, bool last) {
  if (path_.empty() || !environment_.leads() || checkpoint.model.empty()) return;
  checkpoint.seed = spec_.train.seed;
  checkpoint.spec = spec_;
  const int64_t step = checkpoint.step;
  if (last && step == writer_.step()) return;  // it was due, too
  auto written = [this, checkpoint = std::move(checkpoint)] { write(checkpoint); };
  if (writer_.start(step, std::move(written), last)) return;
  warn(environment_,
       fmt::format("the checkpoint of step {} is skipped, because that of step {} is still being "
                   "written. Training continues",
                   step, writer_.step()));
}

// Prepares the folder of a rank that has begun to lead, which may be on another disk than that of the first
// leader. Call it with the lock. It may run on the writer's thread. Training does not depend on it, so a
// failure is a warning, and the next call tries again.
void RunFolder::begin_to_lead() {
  if (configured_) return;
  const Say say = [this](const std::string& text) { sink_.emit(Message{Severity::kWarning, -1, text}); };
  try {
    if (require_lock_) require_lock_();
    const bool written = write_configuration(say);
    set_aside_foreign(path_, first_step(), lineage_, say, lock_asked());
    configured_ = written;
  } catch (const Error& error) {
    say(fmt::format(
        "{}. Not all checkpoints of other runs in {} were renamed, and --resume auto may take one",
        error.what(), path_.string()));
  }
}

// Returns what asks before each removal and renaming whether this process still holds the lock.
IoStep RunFolder::lock_asked() const {
  return [this](std::string_view) {
    if (require_lock_) require_lock_();
  };
}

// Runs on the writer's thread.
void RunFolder::write(const CheckpointState& checkpoint) {
  CheckpointDone done;
  done.step = checkpoint.step;
  const Nanoseconds start = clock_.now();
  try {
    CheckpointOptions options;
    options.keep = spec_.checkpoint.keep;
    options.lineage = lineage_;
    if (require_lock_) require_lock_();  // may give this process the lock, and so the epoch
    if (lock_epoch_) options.lineage.epoch = lock_epoch_();
    begin_to_lead();
    options.before = lock_asked();
    options.say = [this](const std::string& text) { sink_.emit(Message{Severity::kWarning, -1, text}); };
    done.path = write_checkpoint(path_, checkpoint, options).string();
    saved_ = done.step;
    unwritten_.clear();
  } catch (const std::exception& error) {
    // This is the outermost level of the thread. The run goes on without this checkpoint. finish() reports
    // it, unless a later checkpoint is written.
    done.error = error.what();
    unwritten_ = fmt::format("the checkpoint of step {} was not written: {}", done.step, done.error);
  }
  done.seconds = to_seconds(clock_.now() - start);
  sink_.emit(done);
}

// Writes config.toml, for people and for `starling eval`. Training does not depend on it, so `say` is given
// the error of a failure. Returns whether there was none.
bool RunFolder::write_configuration(const Say& say) const {
  try {
    write_text(path_ / kConfigFile, spec_to_toml(spec_));
    return true;
  } catch (const Error& error) {
    say(error.what());
    return false;
  }
}

void RunFolder::write_result(const RunResult& result) const {
  if (path_.empty() || !environment_.leads()) return;
  const std::string line = to_json(result, {unix_time_s(), environment_.kept.incarnation});
  write_record([&] { write_text(path_ / kResultFile, nlohmann::ordered_json::parse(line).dump(2) + "\n"); });
}

void RunFolder::write_timeline(const StepTimeline& timeline) const {
  if (path_.empty() || !environment_.leads()) return;
  write_record([&] { starling::write_timeline((path_ / "timeline.json").string(), timeline); });
}

// Writes a file that training does not depend on, so that a failure is a warning.
void RunFolder::write_record(const std::function<void()>& write) const {
  try {
    if (require_lock_) require_lock_();
  } catch (const Error&) {  // finish() says it
    return;
  }
  try {
    write();
  } catch (const Error& error) {
    warn(environment_, error.what());
  }
}

// Runs `write`. An error is what finish() will throw. Returns whether there was none.
bool RunFolder::attempt(const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const Error& error) {
    const std::string what = error.what();
    if (unwritten_.find(what) == std::string::npos) unwritten_ += (unwritten_.empty() ? "" : ". ") + what;
    return false;
  }
}

// Returns who holds the lock of the run folder at the end of the run. An error is what finish() will throw.
RunFolder::Holding RunFolder::holding() {
  Holding holding = Holding::kThisRank;
  attempt([&] {
    try {
      if (require_lock_) require_lock_();
    } catch (const ConfigError&) {
      holding = Holding::kOtherRun;
      throw;
    } catch (const LockNotWritten&) {
      holding = Holding::kNobody;
      throw;
    } catch (const Error&) {
      // A rank that never had the lock does not know whether another run has used the folder.
      holding = lock_epoch_() == 0 ? Holding::kOtherRun : Holding::kOtherRank;
      throw;
    }
  });
  return holding;
}

// Writes train.save. A rank that does not hold the lock writes it only outside the run folder. If another run
// has used the folder, or if that is not known, a file of the same name may be of that run, and is left.
void RunFolder::save_weights(Holding holding, const TensorMap& tensors) {
  fs::path file = spec_.train.save;
  if (file.empty() || holding == Holding::kOtherRank) return;
  if (holding != Holding::kThisRank && is_below_run(path_, file)) return;
  if (holding == Holding::kOtherRun)
    file = with_part_of_name(file, environment_.kept.incarnation.substr(0, 8));
  attempt([&] {
    write_weights(file.string(), tensors);
    if (holding != Holding::kThisRank)
      warn(environment_, fmt::format("the trained weights were written to {}", file.string()));
  });
}

// Writes train.save, and model.safetensors if the run `keeps` it. Each file is tried, in case only one of the
// two disks is full.
void RunFolder::write_weights_files(const StrategyState& weights, bool keeps,
                                    const std::map<std::string, std::string>& metadata) {
  TensorMap tensors = weights.parameters;
  tensors.insert(weights.buffers.begin(), weights.buffers.end());
  const Holding held_by = holding();
  save_weights(held_by, tensors);
  if (held_by != Holding::kThisRank || !keeps || path_.empty()) return;
  attempt([&] { write_safetensors(path_ / kWeightsFile, tensors, metadata); });
  begin_to_lead();
}

void RunFolder::finish(const std::function<StrategyState()>& make_state, bool interrupted, bool together,
                       const std::map<std::string, std::string>& metadata) {
  // The state is collective. It comes first, because other ranks must not wait for this rank's disk. The
  // incarnation is equal on all ranks, and empty if there is no run folder.
  const bool keeps = !environment_.kept.incarnation.empty() && !interrupted;
  std::optional<StrategyState> weights;
  if (keeps || !spec_.train.save.empty()) weights = make_state();
  carry_out(environment_.group, together, [&] {
    writer_.wait();
    if (!environment_.leads()) return;
    if (weights) return write_weights_files(*weights, keeps, metadata);
    // Without weights to write, an error is only that another run has used the folder, or may have.
    if (unwritten_.empty() && holding() != Holding::kOtherRun) unwritten_.clear();
  });
  if (!unwritten_.empty()) throw Error(ErrorCode::kCheckpoint, unwritten_);
}

void RunFolder::report(const RunResult& result, const std::optional<StepTimeline>& timeline,
                       bool together) const {
  carry_out(environment_.group, together, [&] {
    if (timeline) write_timeline(*timeline);
    if (environment_.leads()) sink_.emit(result);
    write_result(result);
    sink_.flush();
  });
}

}  // namespace starling
