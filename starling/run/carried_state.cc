#include "starling/run/carried_state.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/message_tags.h"
#include "starling/run/rank_coordinates.h"

namespace starling {
namespace {

constexpr const char* kPrefix = "carried/";
constexpr size_t kMostDimensions = 8;

// What rank 0 needs to know before it receives a tensor.
struct Header {
  int64_t rank = 0;
  int64_t type = 0;
  int64_t dimensions = 0;
  std::array<int64_t, kMostDimensions> sizes = {};
};

// An undefined tensor is stored as an empty one of bytes.
at::Tensor stored(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().cpu().contiguous() : at::empty({0}, at::kByte);
}

// Returns a copy of a stored tensor on a device.
at::Tensor restored(const at::Tensor& tensor, at::Device device) {
  if (tensor.numel() == 0 && tensor.scalar_type() == at::kByte) return {};
  return tensor.to(device, /*non_blocking=*/false, /*copy=*/true);
}

Header header_of(const std::string& name, const at::Tensor& tensor, int rank) {
  if (tensor.dim() > static_cast<int64_t>(kMostDimensions)) {
    throw ConfigError("Model::carried", fmt::format("'{}' has {} dimensions; a checkpoint keeps at most {}",
                                                    name, tensor.dim(), kMostDimensions));
  }
  Header header{rank, static_cast<int64_t>(tensor.scalar_type()), tensor.dim(), {}};
  std::copy_n(tensor.sizes().begin(), tensor.dim(), header.sizes.begin());
  return header;
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
  for (const auto& [name, tensor] : tensors_) {
    const at::Tensor own = stored(*tensor);
    Header header = header_of(name, own, rank);
    if (group.rank() != 0) {
      send(group, &header, sizeof header, 0, kGatherTag);
      if (own.nbytes() > 0) send(group, own.data_ptr(), own.nbytes(), 0, kGatherTag);
      continue;
    }
    ranks[coordinate_of_rank(spec, rank)][kPrefix + name] = own.clone();
    for (int r = 1; r < group.size(); ++r) {
      recv(group, &header, sizeof header, r, kGatherTag);
      const at::IntArrayRef sizes(header.sizes.data(), static_cast<size_t>(header.dimensions));
      at::Tensor theirs = at::empty(sizes, static_cast<at::ScalarType>(header.type));
      if (theirs.nbytes() > 0) recv(group, theirs.data_ptr(), theirs.nbytes(), r, kGatherTag);
      ranks[coordinate_of_rank(spec, static_cast<int>(header.rank))][kPrefix + name] = theirs;
    }
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
