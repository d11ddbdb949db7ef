#include "starling/commands/ckpt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "starling/base/error.h"
#include "starling/parallel/replica/averaged_weights.h"
#include "starling/run/folder/run_weights.h"
#include "starling/telemetry/text_style.h"
#include "starling/train/checkpoint.h"

namespace starling {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void refuse(const fs::path& path) {
  throw ConfigError(path.string(),
                    "is neither a run folder with checkpoints nor the folder of a checkpoint; "
                    "give a folder such as runs/NAME or runs/NAME/checkpoints/step-000100");
}

[[noreturn]] void refuse_passed(const fs::path& path, const std::vector<PassedCheckpoint>& passed) {
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("{}. {} has no whole checkpoint. `starling ckpt verify {}` shows what is wrong with each",
                  passed.front().text, path.string(), path.string()));
}

bool is_checkpoint(const fs::path& path) {
  return may_exist(path / "manifest.json") || may_exist(path / "state.json");
}

uint64_t bytes_in(const fs::path& folder) {
  uint64_t sum = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const uint64_t bytes = fs::file_size(it->path(), ignored);
    if (!ignored) sum += bytes;
  }
  return sum;
}

int64_t step_of(const fs::path& folder) {
  for (const CheckpointFolder& c : list_checkpoints(folder.parent_path().parent_path())) {
    std::error_code ignored;
    if (fs::equivalent(c.path, folder, ignored)) return c.step;
  }
  return 0;
}

// Returns the folder of the checkpoint at `path`.
fs::path folder_at(const fs::path& path) {
  if (is_checkpoint(path)) return path;
  std::vector<PassedCheckpoint> passed;
  const auto newest = newest_or_warn(path, passed);
  if (!newest && !passed.empty()) refuse_passed(path, passed);
  if (!newest) refuse(path);
  return newest->path;
}

at::Tensor whole(const fs::path& folder, const std::string& name, const StoredTensor& tensor) {
  if (!tensor.global_shape.empty() && tensor.value.sizes() != at::IntArrayRef(tensor.global_shape)) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: {} is a part of a tensor, and this Starling does not join parts",
                            folder.string(), name));
  }
  return tensor.value;
}

TensorMap model_of(const fs::path& path) {
  TensorMap tensors;
  if (fs::is_regular_file(path)) {
    for (const auto& [name, value] : read_weights(path.string()).tensors) tensors["model/" + name] = value;
    return tensors;
  }
  const fs::path folder = folder_at(path);
  const CheckpointState state = read_checkpoint(folder);
  for (const auto& [name, tensor] : state.model) tensors["model/" + name] = whole(folder, name, tensor);
  return tensors;
}

// Returns the averaged weights of a checkpoint by parameter.
TensorMap averages_of(const fs::path& path) {
  const fs::path folder = folder_at(path);
  TensorMap states;
  for (const auto& [name, kinds] : read_checkpoint(folder).optimizer) {
    for (const auto& [kind, tensor] : kinds)
      states[fmt::format("{}/{}", kind, name)] = whole(folder, name, tensor);
  }
  TensorMap averages = averaged_weights(states);
  if (averages.empty())
    throw ConfigError(
        folder.string(),
        "has no averaged weights, because its run had no optimizer.ema_decay; leave out --averaged");
  return averages;
}

// Returns all tensors of a checkpoint by their names in TensorDifference.
TensorMap all_of(const fs::path& path) {
  const fs::path folder = folder_at(path);
  const CheckpointState state = read_checkpoint(folder);
  TensorMap tensors;
  for (const auto& [name, tensor] : state.model) tensors["model/" + name] = whole(folder, name, tensor);
  for (const auto& [name, states] : state.optimizer)
    for (const auto& [of, tensor] : states)
      tensors[fmt::format("optimizer/{}/{}", name, of)] = whole(folder, name, tensor);
  for (const auto& [coordinate, held] : state.ranks)
    for (const auto& [name, tensor] : held) tensors[fmt::format("ranks/{}/{}", coordinate, name)] = tensor;
  return tensors;
}

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

TensorDifference not_comparable(const std::string& name, std::string text) {
  return {.name = name, .text = std::move(text), .comparable = false};
}

// Returns how two tensors differ. They have one shape and one type, but not the same bits.
TensorDifference difference(const std::string& name, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble).flatten(), y = b.to(at::kDouble).flatten();
  const at::Tensor apart = (x - y).abs();
  TensorDifference d{.name = name, .text = {}};
  d.largest = apart.max().item<double>();
  const double norm = x.norm().item<double>();
  d.relative = apart.norm().item<double>() / (norm > 0 ? norm : 1);
  d.text = fmt::format("{} of {} elements differ, by {} at most; relative difference {} (2-norm)",
                       with_thousands(apart.ne(0).sum().item<int64_t>()), with_thousands(apart.numel()),
                       significant(d.largest), significant(d.relative));
  return d;
}

}  // namespace

std::vector<CheckpointEntry> checkpoints_at(const fs::path& path, bool hashes) {
  std::vector<CheckpointFolder> folders =
      is_checkpoint(path) ? std::vector<CheckpointFolder>{{step_of(path), path}} : list_checkpoints(path);
  if (folders.empty()) refuse(path);
  std::vector<CheckpointEntry> entries;
  entries.reserve(folders.size());
  for (CheckpointFolder& folder : folders) {
    CheckpointCheck check = check_checkpoint(folder.path, hashes);
    const uint64_t bytes = bytes_in(folder.path);
    entries.push_back({std::move(folder), bytes, std::move(check)});
  }
  return entries;
}

CheckpointDifference compare_checkpoints(const fs::path& a, const fs::path& b) {
  const bool weights = fs::is_regular_file(a) || fs::is_regular_file(b);
  const TensorMap first = weights ? model_of(a) : all_of(a), second = weights ? model_of(b) : all_of(b);
  CheckpointDifference result;
  for (const auto& [name, tensor] : first) {
    ++result.tensors;
    const auto other = second.find(name);
    if (other == second.end()) {
      result.different.push_back(not_comparable(name, "only the first has it"));
    } else if (tensor.sizes() != other->second.sizes() ||
               tensor.scalar_type() != other->second.scalar_type()) {
      result.different.push_back(
          not_comparable(name, fmt::format("{} and {}", shape_of(tensor), shape_of(other->second))));
    } else if (!same_bits(tensor, other->second)) {
      result.different.push_back(difference(name, tensor, other->second));
    }
  }
  for (const auto& [name, tensor] : second) {
    if (first.contains(name)) continue;
    ++result.tensors;
    result.different.push_back(not_comparable(name, "only the second has it"));
  }
  std::stable_sort(result.different.begin(), result.different.end(), [](const auto& x, const auto& y) {
    if (x.comparable != y.comparable) return !x.comparable;
    return x.relative > y.relative;
  });
  return result;
}

int64_t export_checkpoint(const fs::path& path, const fs::path& file, const ExportOptions& options) {
  const std::string ending = file.extension().string();
  if (ending != ".safetensors" && ending != ".pt" && ending != ".pth" &&
      !file.string().ends_with(".safetensors.index.json"))
    throw ConfigError(
        file.string(),
        "must end in .safetensors, in .pt or .pth for torch.load, or in .safetensors.index.json "
        "for several files");
  if (!options.force && fs::exists(file))
    throw ConfigError(file.string(), "exists; give another name, or --force");
  TensorMap tensors;
  for (const auto& [name, tensor] : model_of(path)) tensors[name.substr(std::strlen("model/"))] = tensor;
  if (options.averaged) {
    for (auto& [name, average] : averages_of(path)) tensors[name] = average;
  }
  write_weights(file.string(), tensors);
  return static_cast<int64_t>(tensors.size());
}

}  // namespace starling
