#include "starling/run/loop/carried_state.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <utility>

#include "starling/base/error.h"
#include "starling/parallel/replica/gather_state.h"
#include "starling/run/ranks/rank_coordinates.h"

namespace starling {
namespace {

constexpr const char* kPrefix = "carried/";
// An undefined tensor is stored as an empty one of bytes.
at::Tensor stored(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().cpu().contiguous() : at::empty({0}, at::kByte);
}

// Returns a copy of a stored tensor on a device.
at::Tensor restored(const at::Tensor& tensor, at::Device device) {
  if (tensor.numel() == 0 && tensor.scalar_type() == at::kByte) return {};
  return tensor.to(device, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

ModelFactory CarriedState::watch(ModelFactory factory) {
  return [this, factory = std::move(factory)] {
    Model model = factory();
    if (!model.carried.empty()) {
      const std::lock_guard lock(mutex_);
      made_.push_back({model.module, model.carried});
    }
    return model;
  };
}

void CarriedState::find_replica() {
  const std::lock_guard lock(mutex_);
  std::erase_if(made_, [](const Made& made) { return made.module.expired(); });
  if (made_.size() > 1) {
    throw ConfigError(
        "train.threads_mode",
        fmt::format("the module carries tensors from batch to batch, and {} replicas of it train "
                    "in one rank; use \"op\", and let the program keep no module that the factory "
                    "has made",
                    made_.size()));
  }
  tensors_ = made_.empty() ? std::map<std::string, at::Tensor*>() : made_.front().tensors;
}

TensorMap CarriedState::copy() const {
  TensorMap values;
  for (const auto& [name, tensor] : tensors_)
    values[name] = tensor->defined() ? tensor->detach().clone() : at::Tensor();
  return values;
}

void CarriedState::put(const TensorMap& values) {
  for (const auto& [name, tensor] : tensors_) {
    if (const auto value = values.find(name); value != values.end())
      *tensor = value->second.defined() ? value->second.clone() : at::Tensor();
  }
}

void CarriedState::save(const RunSpec& spec, int rank, Group& group,
                        std::map<std::string, TensorMap>& ranks) const {
  if (!any()) return;
  StrategyState all;  // by "COORDINATE/carried/NAME"
  for (const auto& [name, tensor] : tensors_)
    all.buffers[coordinate_of_rank(spec, rank) + "/" + kPrefix + name] = stored(*tensor);
  gather_state(group, all);
  for (const auto& [key, tensor] : all.buffers) {
    const size_t slash = key.find('/');
    ranks[key.substr(0, slash)][key.substr(slash + 1)] = tensor.clone();
  }
}

bool CarriedState::load(const RunSpec& spec, int rank, const CheckpointState& checkpoint, at::Device device) {
  for (const auto& [name, tensor] : tensors_) {
    if (!has_tensor_of_every_rank(spec, checkpoint, kPrefix + name)) return false;
  }
  for (const auto& [name, tensor] : tensors_) {
    const at::Tensor& kept = *tensor_of_rank(checkpoint, coordinate_of_rank(spec, rank), kPrefix + name);
    *tensor = restored(kept, tensor->defined() ? tensor->device() : device);
  }
  return true;
}

}  // namespace starling
