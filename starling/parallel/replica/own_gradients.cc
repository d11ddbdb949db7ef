#include "starling/parallel/replica/own_gradients.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "starling/base/error.h"
#include "starling/parallel/replica/flat_replica.h"

namespace starling {

at::Tensor on_memory_of(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  return at::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), like.strides());
}

at::Tensor elements_of(const at::Tensor& flat, int64_t begin, int64_t count) {
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + begin, {count}, {1});
}

bool take_gradient(NamedTensor& parameter, const at::Tensor& place) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const bool had = gradient.defined();
  if (!had) {
    place.zero_();
  } else if (gradient.layout() != at::kStrided) {
    throw ConfigError(parameter.name,
                      "its gradient is sparse, and Starling exchanges dense gradients only; make the layer "
                      "without sparse gradients (torch::nn::EmbeddingOptions::sparse(false), in Python "
                      "sparse=False)");
  } else if (gradient.const_data_ptr() != place.const_data_ptr()) {
    place.copy_(gradient);
  }
  gradient = place;
  return had;
}

bool agree_on_used(Group& group, std::vector<double>& used, bool stop_requested) {
  if (group.size() == 1) return stop_requested;
  std::vector<double> sums = used;
  sums.push_back(stop_requested ? 1 : 0);
  all_reduce(group, sums.data(), sums.size(), DataType::kFp64, ReduceOp::kSum);
  std::copy(sums.begin(), sums.end() - 1, used.begin());
  return sums.back() > 0;
}

OwnedRange::OwnedRange(const std::vector<NamedTensor>& parameters, const FlatLayout& layout,
                       const at::Tensor& elements, int64_t begin)
    : begin_(begin), count_(elements.numel()) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto offset = static_cast<int64_t>(layout.offset[i]);
    const int64_t first = std::max(offset, begin);
    const int64_t last = std::min(offset + parameters[i].tensor.numel(), begin + count_);
    parts_.push_back({parameters[i].tensor, {}, first - offset});
    from_.push_back(first - begin);
    if (first < last)
      parts_.back().part = elements_of(elements, first - begin, last - first).set_requires_grad(true);
  }
}

void shard_optimizer(OwnOptimizer& optimizer, const std::vector<ParameterPart>& parts, const std::string& key,
                     const std::string& remedy) {
  if (optimizer.shard(parts)) return;
  throw ConfigError(
      key,
      fmt::format("the program's optimizer needs all elements of a parameter to update one of them; {}, or "
                  "use an optimizer that updates each element by itself",
                  remedy));
}

void OwnedRange::give(const at::Tensor& gradients, const std::vector<double>& used) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    at::Tensor& part = parts_[i].part;
    if (!part.defined()) continue;
    if (used[i] > 0) {
      part.mutable_grad() = elements_of(gradients, from_[i], part.numel());
    } else {
      part.mutable_grad().reset();
    }
  }
}

void OwnedRange::forget() {
  for (ParameterPart& p : parts_) {
    if (p.part.defined()) p.part.mutable_grad().reset();
  }
}

void OwnedRange::step(OwnOptimizer& optimizer, const at::Tensor& gradients, const std::vector<double>& used) {
  give(gradients, used);
  optimizer.step();
  forget();
}

void add_own_optimizer(OwnOptimizer& optimizer, Group& group, bool equal, const std::string& part,
                       StrategyState& state) {
  const at::Tensor own = optimizer.state();
  if (equal) {
    state.optimizer["own_optimizer/" + part] = own;
    return;
  }
  std::vector<int64_t> sizes(static_cast<size_t>(group.size()), own.numel());
  const int64_t size = own.numel();
  if (group.size() > 1) all_gather(group, &size, sizes.data(), 1, DataType::kInt64);
  const at::Tensor longest = at::zeros({*std::max_element(sizes.begin(), sizes.end())}, at::kByte);
  longest.narrow(0, 0, size).copy_(own);
  const std::vector<at::Tensor> all = gather_flat(group, longest);
  for (size_t r = 0; r < all.size(); ++r)
    state.optimizer[fmt::format("own_optimizer@{}/{}", r, part)] = all[r].narrow(0, 0, sizes[r]).clone();
}

void load_own_optimizer(OwnOptimizer& optimizer, const Group& group, bool equal, const std::string& part,
                        const StrategyState& state) {
  const std::string name =
      equal ? "own_optimizer/" + part : fmt::format("own_optimizer@{}/{}", group.rank(), part);
  const auto kept = state.optimizer.find(name);
  if (kept == state.optimizer.end()) {
    throw Error(ErrorCode::kCheckpoint, "the checkpoint has no state '" + name +
                                            "' of the program's optimizer; it belongs to another exchange, "
                                            "number of ranks or kind of optimizer");
  }
  optimizer.load_state(kept->second);
}

}  // namespace starling
