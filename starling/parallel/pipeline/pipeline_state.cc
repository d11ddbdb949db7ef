// Snapshots of a Pipeline, the whole model on every rank, and the timeline: what gathers the ranks' parts.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/parallel/pipeline/pipeline.h"

namespace starling {
namespace {

constexpr uint32_t kStateTag = 0x52000000u;

void broadcast(Group& group, at::Tensor& tensor, int root) {
  at::Tensor value = tensor.detach().contiguous();
  group.broadcast(value.data_ptr(), value.numel(), data_type_of(value.scalar_type()), root);
  if (value.data_ptr() != tensor.data_ptr()) tensor.copy_(value);
}

// A copy of `owner`'s tensor on rank 0; an undefined one elsewhere. `like` has its sizes and type on all ranks involved.
at::Tensor to_rank_0(Group& group, const at::Tensor& own, const std::vector<int64_t>& sizes,
                     at::ScalarType type, int owner) {
  if (owner == 0 && group.rank() == 0) return own.detach().clone(at::MemoryFormat::Contiguous);
  if (group.rank() == owner) {
    const at::Tensor value = own.detach().contiguous();
    group.send(value.data_ptr(), value.nbytes(), 0, kStateTag);
  } else if (group.rank() == 0) {
    at::Tensor value = at::empty(sizes, type);
    group.recv(value.data_ptr(), value.nbytes(), owner, kStateTag);
    return value;
  }
  return {};
}

const at::Tensor& fitting(const std::map<std::string, at::Tensor>& tensors, const std::string& name,
                          const std::vector<int64_t>& sizes) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) {
    throw Error(ErrorCode::kCheckpoint,
                "the checkpoint holds no tensor '" + name + "': it is of another model or optimizer");
  }
  if (it->second.sizes() != at::IntArrayRef(sizes)) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("the checkpoint's '{}' has another shape than the model's: it is of another model",
                    name));
  }
  return it->second;
}

}  // namespace

// Parameters and buffers of every stage come to every rank, so that each evaluates its share of the samples by the
// model's own forward.
void Pipeline::consensus() {
  if (group_.size() == 1) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& p = replica_.parameters[i].tensor;
    if (!places_[i].own && !whole_) p.set_data(at::empty(places_[i].sizes, p.options()));
    broadcast(group_, p, places_[i].holders[0]);
  }
  for (size_t i = 0; i < replica_.buffers.size(); ++i)
    broadcast(group_, replica_.buffers[i].tensor, buffer_owners_[i]);
  whole_ = true;
}

StrategyState Pipeline::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  const auto put = [&](std::map<std::string, at::Tensor>& into, const std::string& name,
                       const at::Tensor& value) {
    if (value.defined()) into[name] = value;
  };
  for (size_t i = 0; i < places_.size(); ++i) {
    const NamedTensor& p = replica_.parameters[i];
    const Place& place = places_[i];
    const int owner = place.holders[0];
    put(state.parameters, p.name, to_rank_0(group_, p.tensor, place.sizes, options_.master, owner));
    for (int s = 0; s < rule_.state_count(); ++s) {
      const at::Tensor own = place.own ? place.states[s] : at::Tensor();
      put(state.optimizer, rule_.state_names()[s] + "/" + p.name,
          to_rank_0(group_, own, place.sizes, options_.master, owner));
    }
  }
  for (size_t i = 0; i < replica_.buffers.size(); ++i) {
    const NamedTensor& b = replica_.buffers[i];
    put(state.buffers, b.name,
        to_rank_0(group_, b.tensor, b.tensor.sizes().vec(), b.tensor.scalar_type(), buffer_owners_[i]));
  }
  return state;
}

void Pipeline::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    NamedTensor& p = replica_.parameters[i];
    Place& place = places_[i];
    const at::Tensor& value = fitting(state.parameters, p.name, place.sizes);
    if (place.own || whole_) p.tensor.copy_(value);
    for (int s = 0; s < rule_.state_count(); ++s) {
      if (state.optimizer.empty()) continue;  // weights alone: the optimizer begins afresh
      const at::Tensor& loaded = fitting(state.optimizer, rule_.state_names()[s] + "/" + p.name, place.sizes);
      if (place.own) place.states[s].copy_(loaded);
    }
  }
  for (NamedTensor& b : replica_.buffers)
    b.tensor.copy_(fitting(state.buffers, b.name, b.tensor.sizes().vec()));
  step_.index = state.step;
}

std::vector<MeasuredAction> Pipeline::gather_timeline() {
  // Words of an action: kind, micro-batch, chunk, begin, end.
  constexpr size_t kWords = 5;
  std::vector<int64_t> own;
  for (const MeasuredAction& a : run_->timeline()) {
    own.insert(own.end(), {static_cast<int64_t>(a.action.kind), a.action.micro_batch, a.action.chunk,
                           a.begin_ns, a.end_ns});
  }
  if (group_.rank() != 0) {
    group_.send(own.data(), own.size() * sizeof(int64_t), 0, kStateTag);
    return {};
  }
  const bool one_host = static_cast<int>(group_.local_ranks().size()) == group_.size();
  std::vector<MeasuredAction> all;
  std::vector<int64_t> begins;
  for (int r = 0; r < group_.size(); ++r) {
    std::vector<int64_t> words(own);
    if (r > 0) {
      words.resize(options_.schedule.actions[r].size() * kWords);
      group_.recv(words.data(), words.size() * sizeof(int64_t), r, kStateTag);
    }
    begins.push_back(words.empty() ? 0 : words[3]);
    for (size_t i = 0; i + kWords <= words.size(); i += kWords) {
      Action action;
      action.kind = static_cast<ActionKind>(words[i]);
      action.micro_batch = static_cast<int>(words[i + 1]);
      action.chunk = static_cast<int>(words[i + 2]);
      all.push_back({r, action, words[i + 3], words[i + 4]});
    }
  }
  const int64_t earliest = *std::min_element(begins.begin(), begins.end());
  for (MeasuredAction& a : all) {
    const int64_t origin = one_host ? earliest : begins[a.rank];
    a.begin_ns -= origin;
    a.end_ns -= origin;
  }
  return all;
}

}  // namespace starling
