#include "starling/train/checkpoint_match.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "starling/base/error.h"
#include "starling/spec/print.h"

namespace starling {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void refuse(const fs::path& folder, const std::string& what) {
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format(
          "{}: checkpoint of another model: {}; give the model that it was made with, another --run-dir, "
          "or --resume never",
          folder.string(), what));
}

std::vector<int64_t> global_shape(const StoredTensor& tensor) {
  return tensor.global_shape.empty() ? tensor.value.sizes().vec() : tensor.global_shape;
}

}  // namespace

void require_same_configuration(const fs::path& folder, const CheckpointState& state, const RunSpec& spec) {
  if (state.spec.model.name == kUserModel && spec.model.name != kUserModel)
    throw ConfigError(
        "--resume",
        fmt::format("{} is the checkpoint of a program that brings its own model, with exchange {}. "
                    "Resume the run with that program, or give another --run-dir or --resume never "
                    "to start anew",
                    folder.string(), state.spec.exchange.name));
  const std::vector<Difference> found = differences(state.spec, spec);
  if (found.empty()) return;
  std::vector<std::string> others;
  for (size_t i = 1; i < found.size(); ++i) others.push_back(found[i].key);
  const std::string more = others.empty() ? "" : fmt::format(". Also different: {}", fmt::join(others, ", "));
  throw ConfigError(
      found[0].key,
      fmt::format("the value was {} in the run of {} and is {} now{}. Give the same values to go on, or "
                  "another --run-dir or --resume never to start anew",
                  found[0].a, folder.string(), found[0].b, more));
}

void require_same_tensors(const fs::path& folder, const std::map<std::string, StoredTensor>& stored,
                          const TensorMap& target) {
  for (const auto& [name, tensor] : target) {
    const auto found = stored.find(name);
    if (found == stored.end()) refuse(folder, fmt::format("it has no tensor {}", name));
    const auto shape = global_shape(found->second);
    if (shape != tensor.sizes().vec())
      refuse(folder, fmt::format("{} is [{}] there and [{}] here", name, fmt::join(shape, ", "),
                                 fmt::join(tensor.sizes().vec(), ", ")));
    if (found->second.value.scalar_type() != tensor.scalar_type())
      refuse(folder,
             fmt::format("{} is {} there and {} here", name, c10::toString(found->second.value.scalar_type()),
                         c10::toString(tensor.scalar_type())));
  }
  for (const auto& [name, tensor] : stored)
    if (target.count(name) == 0)
      refuse(folder, fmt::format("its tensor {} is not in this run's model", name));
}

void restore_tensors(const fs::path& folder, const std::map<std::string, StoredTensor>& stored,
                     const TensorMap& target) {
  require_same_tensors(folder, stored, target);
  for (const auto& [name, tensor] : stored)
    if (tensor.value.sizes() != target.at(name).sizes())
      refuse(folder, fmt::format("it holds only a slice of {}", name));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : target) tensor.copy_(stored.at(name).value);
}

std::map<std::string, StoredTensor> whole_tensors(const TensorMap& tensors) {
  std::map<std::string, StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) stored[name] = {tensor, {}, {}};
  return stored;
}

}  // namespace starling
