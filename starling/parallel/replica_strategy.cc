#include "starling/parallel/replica_strategy.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"

namespace starling {

ReplicaStrategy::ReplicaStrategy(const ModelFactory& factory, UpdateRule rule,
                                 const FlatReplicaOptions& options, Group& group, const Clock& clock)
    : replica_(factory, std::move(rule), options), group_(group), clock_(clock) {
  // The factory may read weights from a file that only rank 0's host has whole: rank 0's count.
  if (group.size() > 1) {
    at::Tensor& x = replica_.parameters();
    group.broadcast(x.data_ptr(), x.numel(), data_type_of(x.scalar_type()), 0);
    replica_.parameters_changed();
  }
}

void ReplicaStrategy::begin_step(const Step& step) {
  replica_.hide();
  step_ = step;
}

double ReplicaStrategy::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  batch_ = batch;
  own_loss_ = replica_.forward_backward(batch, step_.index);
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

StepReport ReplicaStrategy::update() {
  const Nanoseconds start = clock_.now();
  StepReport report;
  report.loss = own_loss_;
  if (advance(report)) {
    exchanging(report, [&] {
      const Agreement agreement = agree(group_, own_loss_, step_.stop_requested);
      report.loss = agreement.loss;
      report.stop = agreement.stop;
    });
  }
  report.compute_s = forward_backward_s_ + to_seconds(clock_.now() - start) - report.exposed_comm_s;
  return report;
}

void ReplicaStrategy::consensus() {
  at::NoGradGuard no_grad;
  replica_.hide();
  const at::Tensor model = agreed();
  average_buffers(group_, replica_.replica());
  replica_.show(model);
}

at::Tensor ReplicaStrategy::mean_over_ranks(const at::Tensor& flat) {
  at::Tensor mean = flat.clone();
  if (group_.size() > 1)
    group_.all_reduce(mean.data_ptr(), mean.numel(), data_type_of(mean.scalar_type()), ReduceOp::kAvg);
  return mean;
}

std::map<std::string, at::Tensor*> ReplicaStrategy::kept_ranges() {
  auto kept = own_ranges();
  kept["x"] = &replica_.parameters();
  const std::vector<std::string>& names = replica_.rule().state_names();
  for (size_t i = 0; i < names.size(); ++i) kept[names[i]] = &replica_.state(static_cast<int>(i));
  return kept;
}

// Names this rank's part of the model: no other part has it.
const std::string& ReplicaStrategy::part_name() {
  const std::vector<NamedTensor>& parameters = replica_.replica().parameters;
  for (const NamedTensor& p : parameters) {
    if (counts_here(replica_.options().parts, p.name)) return p.name;
  }
  return parameters.front().name;
}

StrategyState ReplicaStrategy::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  replica_.hide();
  const at::Tensor model = agreed();
  for (const auto& [kind, flat] : kept_ranges()) {
    const std::vector<at::Tensor> all = gather_flat(group_, *flat);
    for (size_t r = 0; r < all.size(); ++r)
      replica_.unflatten(all[r], fmt::format("{}@{}/", kind, r), state.optimizer);
  }
  if (const at::Tensor values = own_values(); values.defined()) {
    const std::vector<at::Tensor> all = gather_flat(group_, values);
    for (size_t r = 0; r < all.size(); ++r)
      state.optimizer[fmt::format("values@{}/{}", r, part_name())] = all[r];
  }
  if (group_.rank() != 0) return state;
  replica_.unflatten(model, "", state.parameters);
  for (const NamedTensor& b : replica_.replica().buffers)
    state.buffers[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  const std::string& first = replica_.replica().parameters.front().name;
  for (const auto& [name, number] : own_numbers())
    state.optimizer[name + "/" + first] = at::scalar_tensor(*number, at::kDouble);
  return state;
}

void ReplicaStrategy::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  replica_.hide();
  replica_.flatten(state.parameters, "", replica_.parameters());
  if (!state.optimizer.empty()) {  // else weights alone: the optimizer begins afresh
    for (const auto& [kind, flat] : kept_ranges())
      replica_.flatten(state.optimizer, fmt::format("{}@{}/", kind, group_.rank()), *flat);
    const std::string& first = replica_.replica().parameters.front().name;
    for (const auto& [name, number] : own_numbers())
      *number =
          fitting(state.optimizer, name + "/" + first, at::scalar_tensor(0.0, at::kDouble)).item<double>();
    if (const at::Tensor values = own_values(); values.defined())
      take_own_values(
          fitting(state.optimizer, fmt::format("values@{}/{}", group_.rank(), part_name()), values));
  }
  for (NamedTensor& b : replica_.replica().buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  replica_.parameters_changed();
  step_.index = state.step;
}

}  // namespace starling
