#include "starling/parallel/replica/replica_strategy.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/parallel/replica/own_gradients.h"

namespace starling {

namespace {

FlatReplicaOptions with_clock(FlatReplicaOptions options, const Clock& clock) {
  options.clock = &clock;
  // The threads have gradients of their own.
  if (options.hogwild.threads > 0) options.releases_gradients = true;
  return options;
}

}  // namespace

ReplicaStrategy::ReplicaStrategy(const ModelFactory& factory, UpdateRule rule,
                                 const FlatReplicaOptions& options, Group& group, const Clock& clock)
    : replica_(factory, std::move(rule), with_clock(options, clock)), group_(group), clock_(clock) {
  if (options.hogwild.threads > 0)
    team_ = std::make_unique<HogwildTeam>(factory, replica_.rule(), replica_.options());
  // All ranks take the weights of rank 0, because the factory may read a file that only rank 0's host has.
  if (group.size() > 1) {
    at::Tensor& x = replica_.parameters();
    broadcast(group, x.data_ptr(), x.numel(), data_type_of(x.scalar_type()), 0);
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
  own_loss_ = team_ ? team_->step(batch, step_, replica_) : replica_.forward_backward(batch, step_.index);
  agreed_early_.reset();
  exchanged_ = false;
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

void ReplicaStrategy::take_gradients(const OwnStep& step) {
  step_.lr = step.lr;
  own_loss_ = 0;
  agreed_early_.reset();
  exchanged_ = false;
  const double weight = averages_gradients() || step.weight == 0 ? step.weight : 1;
  replica_.take_own_gradients(weight * step.scale);
}

void ReplicaStrategy::exchange_once(bool whole) {
  if (exchanged_ || !averages_gradients()) return;
  if (replica_.options().own_gradients && group_.size() > 1)
    agreed_early_ = Agreement{0, agree_on_used(group_, replica_.used(), step_.stop_requested)};
  exchange_gradients(whole);
  exchanged_ = true;
}

void ReplicaStrategy::synchronize() {
  exchange_once(true);
}

StepReport ReplicaStrategy::update() {
  const Nanoseconds start = clock_.now();
  StepReport report;
  report.loss = own_loss_;
  report.expose(ExchangePhase::kAgreement, replica_.weighing_s());
  if (averages_gradients()) exchanging(report, ExchangePhase::kGradients, [&] { exchange_once(false); });
  if (advance(report)) {
    exchanging(report, ExchangePhase::kAgreement, [&] {
      const Agreement agreement =
          agreed_early_ ? *agreed_early_ : agree(group_, own_loss_, step_.stop_requested);
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

void ReplicaStrategy::show_average() {
  const int average = replica_.rule().average_state();
  if (average < 0) return;
  at::NoGradGuard no_grad;
  const at::Tensor& own = replica_.state(average);
  replica_.show(averages_gradients() ? own : mean_over_ranks(own));
}

at::Tensor ReplicaStrategy::mean_over_ranks(const at::Tensor& flat) {
  at::Tensor mean = flat.clone();
  if (group_.size() > 1)
    all_reduce(group_, mean.data_ptr(), mean.numel(), data_type_of(mean.scalar_type()), ReduceOp::kAvg);
  return mean;
}

std::map<std::string, at::Tensor*> ReplicaStrategy::kept_ranges() {
  auto kept = own_ranges();
  kept["x"] = &replica_.parameters();
  const std::vector<std::string>& names = replica_.rule().state_names();
  for (size_t i = 0; i < names.size(); ++i) kept[names[i]] = &replica_.state(static_cast<int>(i));
  return kept;
}

const std::string& ReplicaStrategy::part_name() {
  return name_of_part(replica_.options().parts, replica_.replica().parameters);
}

StrategyState ReplicaStrategy::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  replica_.hide();
  const at::Tensor model = agreed();
  if (replica_.optimizer() != nullptr)
    add_own_optimizer(*replica_.optimizer(), group_, equal_optimizers(), part_name(), state);
  for (const auto& [kind, flat] : kept_ranges()) {
    if (averages_gradients() && replica_.optimizer() != nullptr) break;
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
  // If there are only weights, the optimizer starts anew.
  if (!state.optimizer.empty()) {
    if (replica_.optimizer() != nullptr)
      load_own_optimizer(*replica_.optimizer(), group_, equal_optimizers(), part_name(), state);
    for (const auto& [kind, flat] : kept_ranges()) {
      if (averages_gradients() && replica_.optimizer() != nullptr) break;
      replica_.flatten(state.optimizer, fmt::format("{}@{}/", kind, group_.rank()), *flat);
    }
    const std::string& first = replica_.replica().parameters.front().name;
    for (const auto& [name, number] : own_numbers())
      *number =
          fitting(state.optimizer, name + "/" + first, at::scalar_tensor(0.0, at::kDouble)).item<double>();
    if (const at::Tensor values = own_values(); values.defined()) {
      // Their length may be that of an earlier version. take_own_values() decides what it accepts.
      const std::string name = fmt::format("values@{}/{}", group_.rank(), part_name());
      const auto kept = state.optimizer.find(name);
      take_own_values(kept != state.optimizer.end() ? kept->second : fitting(state.optimizer, name, values));
    }
  }
  for (NamedTensor& b : replica_.replica().buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  replica_.parameters_changed();
  step_.index = state.step;
}

}  // namespace starling
