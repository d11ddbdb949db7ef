// The update half of AllReduce: reduction and optimizer in one pass over flat memory, and snapshots of the
// state.
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "starling/base/error.h"
#include "starling/optim/sum_of_squares.h"
#include "starling/parallel/all_reduce/all_reduce.h"

namespace starling {

// Returns the gradient ranges that the update sums. On one host, these are the ranges of all threads of all
// ranks, in rank order. On several hosts, it is the range of this rank's first thread, which then holds the
// sum over all threads of all ranks.
std::vector<const std::byte*> AllReduce::sources() const {
  if (!one_host_) return {static_cast<const std::byte*>(memory_->gradients(group_.local_rank(), 0))};
  std::vector<const std::byte*> result;
  for (int r = 0; r < group_.size(); ++r) {
    for (int m = 0; m < options_.threads; ++m)
      result.push_back(static_cast<const std::byte*>(memory_->gradients(r, m)));
  }
  return result;
}

void AllReduce::apply_bucket(size_t bucket) {
  const Bucket& b = layout_.buckets[bucket];
  const size_t ranks = sharded() ? group_.local_ranks().size() : 1;
  const size_t rank = sharded() ? group_.local_rank() : 0;
  const auto apply_share = [&](int thread) {
    const auto [begin, end] =
        share_of(b.begin, b.end, rank * options_.threads + thread, ranks * options_.threads);
    if (begin == end) return;
    const bool finite = options_.master == at::kDouble      ? apply_range<double, double>(bucket, begin, end)
                        : options_.working == at::kBFloat16 ? apply_range<float, Bf16>(bucket, begin, end)
                                                            : apply_range<float, float>(bucket, begin, end);
    if (!finite) finite_ = false;
  };
  if (team_) {
    team_->run(apply_share);
  } else {
    apply_share(0);
  }
}

// Returns whether the mean gradient is finite.
template <typename T, typename G>
bool AllReduce::apply_range(size_t bucket, size_t begin, size_t end) {
  std::vector<const G*> gradients;
  for (const std::byte* s : sources()) gradients.push_back(reinterpret_cast<const G*>(s) + begin);
  std::vector<const T*> state;
  std::vector<T*> state_out;
  for (int i = 0; i < rule_.state_count(); ++i) {
    state.push_back(static_cast<const T*>(memory_->state(i, false)) + begin);
    state_out.push_back(static_cast<T*>(memory_->state(i, true)) + begin);
  }
  UpdateArgs<T, G> args;
  args.gradients = gradients.data();
  args.sources = static_cast<int>(gradients.size());
  args.gradient_scale = update_scale_;
  args.parameter = static_cast<const T*>(memory_->parameters(false)) + begin;
  args.parameter_out = static_cast<T*>(memory_->parameters(true)) + begin;
  if (options_.working != options_.master) args.bf16_out = static_cast<Bf16*>(memory_->working(true)) + begin;
  args.state = state.data();
  args.state_out = state_out.data();
  args.count = end - begin;
  if (!layers_) return rule_.apply(args, step_.lr, step_.index);
  return layers_->apply(args, layer_parts(bucket, begin, end), step_.lr, step_.index, {});
}

// Returns the parts of tensors in [begin, end), which is a part of the bucket. Their elements count from
// `begin`.
std::vector<LayerPart> AllReduce::layer_parts(size_t bucket, size_t begin, size_t end) const {
  std::vector<LayerPart> parts;
  for (const size_t i : layout_.buckets[bucket].parameters) {
    const size_t from = std::max(begin, layout_.offset[i]);
    const size_t to = std::min(end, layout_.offset[i] + sizes_[i]);
    const bool vector = replicas_[0].parameters[i].tensor.dim() <= 1;
    if (from < to) parts.push_back({from - begin, to - begin, i, vector});
  }
  return parts;
}

template <typename G>
double AllReduce::squares_of_own_share() {
  const auto [begin, end] = share_of(0, layout_.total, group_.rank(), group_.size());
  const auto holes = ranges_counted_elsewhere(options_.parts, replicas_[0].parameters, layout_);
  double sum = 0;
  for (const auto& [from, to] : pieces_outside(begin, end, holes)) {
    std::vector<const G*> gradients;
    for (const std::byte* s : sources()) gradients.push_back(reinterpret_cast<const G*>(s) + from);
    sum += sum_of_squares<G>(gradients.data(), static_cast<int>(gradients.size()), update_scale_, to - from);
  }
  return sum;
}

// Clips by the norm of the mean gradient (Pascanu et al., arXiv 1211.5063). The norm is known only when all
// buckets are complete.
void AllReduce::apply_clipped() {
  double squares = options_.working == at::kDouble     ? squares_of_own_share<double>()
                   : options_.working == at::kBFloat16 ? squares_of_own_share<Bf16>()
                                                       : squares_of_own_share<float>();
  if (group_.size() > 1) all_reduce(group_, &squares, 1, DataType::kFp64, ReduceOp::kSum);
  const double norm = std::sqrt(sum_over_parts(options_.parts, squares));
  if (norm > options_.clip_norm) update_scale_ *= options_.clip_norm / (norm + 1e-6);
  for (size_t b = 0; b < layout_.buckets.size(); ++b) apply_bucket(b);
}

// Only the model that is evaluated shows the averages. Its gradient slots stay bound.
void AllReduce::show_average() {
  const int average = rule_.average_state();
  if (average < 0) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    at::Tensor& p = replicas_[0].parameters[i].tensor;
    p.set_data(memory_->state_view(average, layout_.offset[i], p).to(p.scalar_type()));
  }
  shows_average_ = true;
}

void AllReduce::hide_average() {
  if (!std::exchange(shows_average_, false)) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    at::Tensor& p = replicas_[0].parameters[i].tensor;
    p.set_data(place_of(i, p));
  }
}

StrategyStats AllReduce::strategy_stats() {
  return {{"parameter_bytes", static_cast<double>(layout_.total * at::elementSize(options_.master))},
          {"window_bytes_a_step", static_cast<double>(bytes_in_windows())},
          {"sharded", sharded() ? 1.0 : 0.0}};
}

StrategyState AllReduce::state() {
  if (group_.rank() == 0) return own_state();
  StrategyState state;
  state.step = whole_step_;
  return state;
}

StrategyState AllReduce::own_state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = whole_step_;
  const auto copy = [](const at::Tensor& t) { return t.detach().clone(at::MemoryFormat::Contiguous); };
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const NamedTensor& p = replicas_[0].parameters[i];
    state.parameters[p.name] = copy(memory_->master_view(layout_.offset[i], p.tensor));
    for (int s = 0; s < rule_.state_count(); ++s) {
      state.optimizer[rule_.state_names()[s] + "/" + p.name] =
          copy(memory_->state_view(s, layout_.offset[i], p.tensor));
    }
  }
  for (const NamedTensor& b : replicas_[0].buffers) state.buffers[b.name] = copy(b.tensor);
  return state;
}

void AllReduce::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& p : replicas_[0].parameters)
    parameters.push_back(fitting(state.parameters, p.name, p.tensor));
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const NamedTensor& p = replicas_[0].parameters[i];
    for (int s = 0; s < rule_.state_count(); ++s) {
      // If there are only weights, the optimizer starts anew.
      if (state.optimizer.empty()) continue;
      const at::Tensor& value = fitting(state.optimizer, rule_.state_names()[s] + "/" + p.name, p.tensor);
      if (!sharded() || group_.local_rank() == 0)
        memory_->state_view(s, layout_.offset[i], p.tensor).copy_(value);
    }
  }
  for (NamedTensor& b : replicas_[0].buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  copy_into_memory(parameters);
  step_.index = whole_step_ = state.step;
}

}  // namespace starling
