#include "starling/run/run_folder.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/run/broadcast_text.h"
#include "starling/train/checkpoint_match.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

void warn(const Surroundings& around, const std::string& text) {
  around.sink.emit(Message{Severity::kWarning, around.group.rank(), text});
}

// Moves the checkpoints of an earlier run out of the way: a fresh run's would be taken for older ones.
void set_aside(const fs::path& run_dir) {
  const fs::path checkpoints = run_dir / "checkpoints";
  for (int i = 1; fs::exists(checkpoints); ++i) {
    const fs::path aside = run_dir / fmt::format("checkpoints.{}", i);
    if (!fs::exists(aside)) fs::rename(checkpoints, aside);
  }
}

// Before the training, not after it.
void require_folder_of(const std::string& file) {
  const fs::path parent = fs::absolute(file).parent_path();
  if (::access(parent.c_str(), W_OK | X_OK) == 0) return;
  throw ConfigError("--save",
                    fmt::format("{} cannot be written: {}: {}; make the folder, or give another place", file,
                                parent.string(), std::strerror(errno)));
}

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

}  // namespace

RunFolder::RunFolder(const RunSpec& spec, const Surroundings& around)
    : spec_(spec), around_(around), path_(around.run_dir) {
  std::string found;
  if (around.group.rank() == 0 && !spec.train.save.empty()) require_folder_of(spec.train.save);
  if (around.group.rank() == 0) found = find_checkpoint().string();
  found = broadcast_text(around.group, found);
  if (found.empty()) return;
  resumed_ = read_checkpoint(found);
  require_same_configuration(found, *resumed_, spec);
  if (around.group.rank() == 0) {
    around.sink.emit(
        Message{Severity::kInfo, 0, fmt::format("resuming after step {} from {}", resumed_->step, found)});
  }
}

RunFolder::~RunFolder() {
  if (writing_.valid()) writing_.wait();  // a whole checkpoint is worth the wait, whatever ends the run
}

fs::path RunFolder::find_checkpoint() const {
  const std::string& resume = spec_.run.resume;
  if (resume == "never") {
    if (!path_.empty()) set_aside(path_);
    return {};
  }
  std::vector<std::string> warnings;
  std::optional<CheckpointFolder> found;
  if (resume == "auto") {
    if (!path_.empty() && fs::exists(path_)) found = newest_whole(path_, &warnings);
  } else {
    if (fs::exists(fs::path(resume) / "manifest.json")) return resume;
    if (fs::exists(resume)) found = newest_whole(resume, &warnings);
    if (!found) {
      throw ConfigError("--resume",
                        fmt::format("{} holds no whole checkpoint; give a run folder or one of its "
                                    "checkpoints/step-… folders, or --resume never",
                                    resume));
    }
  }
  for (const std::string& text : warnings) warn(around_, text);
  return found ? found->path : fs::path();
}

void RunFolder::restore(Strategy& strategy) const {
  if (!resumed_) return;
  StrategyState state;
  state.step = resumed_->step;
  for (const auto& [name, stored] : resumed_->model) state.parameters[name] = stored.value;
  state.buffers = state.parameters;  // each looks up its own names
  for (const auto& [name, states] : resumed_->optimizer) {
    for (const auto& [kind, stored] : states) state.optimizer[kind + "/" + name] = stored.value;
  }
  strategy.load_state(state);
}

void RunFolder::save_checkpoint(Strategy& strategy, const Choices& choices, int64_t step,
                                int64_t steps_per_epoch, int64_t total_steps) {
  const StrategyState state = strategy.state();
  if (path_.empty() || !around_.leads() || state.parameters.empty()) return;
  CheckpointState checkpoint = checkpoint_of(state);
  checkpoint.total_steps = total_steps;
  checkpoint.batches = step;
  checkpoint.epoch = step / steps_per_epoch;
  checkpoint.seed = spec_.train.seed;
  checkpoint.choices = choices;
  checkpoint.spec = spec_;
  if (writing_.valid()) writing_.get();
  const int64_t keep = spec_.checkpoint.keep;
  writing_ = std::async(std::launch::async, [this, keep, checkpoint = std::move(checkpoint)] {
    CheckpointDone done;
    done.step = checkpoint.step;
    const Nanoseconds start = around_.clock.now();
    try {
      CheckpointOptions options;
      options.keep = keep;
      done.path = write_checkpoint(path_, checkpoint, options).string();
    } catch (
        const std::exception& error) {  // the edge of this thread: the run goes on without this checkpoint
      done.error = error.what();
    }
    done.seconds = to_seconds(around_.clock.now() - start);
    around_.sink.emit(done);
  });
}

void RunFolder::finish(const std::function<StrategyState()>& make_state) {
  if (writing_.valid()) writing_.get();
  if (spec_.train.save.empty()) return;
  const StrategyState state = make_state();
  if (!around_.leads()) return;
  TensorMap tensors = state.parameters;
  tensors.insert(state.buffers.begin(), state.buffers.end());
  if (spec_.train.save.size() > 11 &&
      spec_.train.save.compare(spec_.train.save.size() - 11, 11, ".index.json") == 0) {
    write_safetensors_sharded(spec_.train.save, tensors, size_t{5} << 30);
  } else {
    write_safetensors(spec_.train.save, tensors, {{"format", "pt"}});
  }
}

}  // namespace starling
