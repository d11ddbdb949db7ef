#include "starling/parallel/zero/sharded_parameters.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <utility>

#include "starling/base/error.h"
#include "starling/parallel/replica/batch_parts.h"
#include "starling/parallel/replica/broadcast_tensor.h"

namespace starling {
namespace {

// Units that stay whole though no operation uses them: that of a layer's weight, and that of its bias.
constexpr size_t kKeptUnits = 2;

}  // namespace

ShardedParameters::ShardedParameters(const ModelFactory& factory, const FlatReplicaOptions& options,
                                     size_t unit_bytes, Group& group, const Clock& clock)
    : options_(options),
      group_(group),
      clock_(clock),
      replica_(make_replica(factory, options.working, options.seed)),
      gatherer_(kKeptUnits),
      used_(replica_.parameters.size(), 1) {
  if (options_.channels_last) to_channels_last(replica_);
  if (group_.size() > 1) {
    for (auto* tensors : {&replica_.parameters, &replica_.buffers})
      for (NamedTensor& t : *tensors) broadcast_tensor(group_, t.tensor, 0);
  }
  // The optimizer is made of the parameters, or of copies in the type of the update.
  std::vector<NamedTensor> originals = replica_.parameters;
  for (NamedTensor& p : originals) {
    if (p.tensor.scalar_type() != options_.master)
      p.tensor = p.tensor.detach().to(options_.master).set_requires_grad(true);
  }
  optimizer_ = options_.optimizer(originals);
  std::vector<ParameterPart> parts;
  for (std::vector<size_t>& unit : plan_units(replica_, unit_bytes)) {
    units_.push_back(std::make_unique<ParameterUnit>(std::move(unit), replica_, options_.master,
                                                     UnitEnvironment{group_, clock_, account_, gatherer_}));
    for (const ParameterPart& part : units_.back()->range().parts()) {
      parts.push_back(part);
      parts.back().whole = originals[parts.size() - 1].tensor;
    }
  }
  try {
    shard_optimizer(*optimizer_, parts, "train.shard", "leave out --shard");
  } catch (...) {
    make_whole();
    throw;
  }
  account_.peak_whole_bytes = 0;
}

ShardedParameters::~ShardedParameters() {
  if (std::uncaught_exceptions() == 0) make_whole();
}

// Gives the module its parameters back.
void ShardedParameters::make_whole() {
  try {
    for (auto& unit : units_) unit->gather();
  } catch (const std::exception&) {  // the group has failed, and its error is known
  }
}

void ShardedParameters::begin_step(const Step& step) {
  gatherer_.hold(false);
  step_ = step;
  at_begin_ = account_;
}

double ShardedParameters::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  stop_.reset();
  const std::vector<Batch> parts = cut_batch(batch, options_.accumulate);
  PartSteps steps;
  steps.forward = [this](const Batch& part) {
    return batch_loss(replica_.model, part, options_.working, options_.channels_last);
  };
  steps.backward = [](const at::Tensor& loss, size_t /*index*/) { loss.backward(); };
  steps.scale_gradients = [this](double factor) {
    const at::NoGradGuard no_grad;
    for (NamedTensor& p : replica_.parameters)
      if (p.tensor.grad().defined()) p.tensor.mutable_grad().mul_(factor);
  };
  steps.factor = [this](const BatchLoss& whole) {
    return share_factor(whole, &group_, options_.global_batch);
  };
  steps.check = [this](double loss) {
    gatherer_.rethrow();
    if (!std::isfinite(loss)) refuse_loss(group_.job_rank(group_.rank()), step_.index, loss);
  };
  own_loss_ = batch_by_parts(parts, steps);
  gatherer_.rethrow();
  for (auto& unit : units_) unit->take_gradients(replica_, 1, used_);
  forward_backward_s_ = to_seconds(clock_.now() - start) - (account_.gather_s - at_begin_.gather_s);
  return own_loss_;
}

void ShardedParameters::take_gradients(const OwnStep& step) {
  gatherer_.rethrow();
  step_.lr = step.lr;
  own_loss_ = 0;
  stop_.reset();
  for (auto& unit : units_) unit->take_gradients(replica_, step.weight * step.scale, used_);
}

// Learns first which parameters had a gradient on some rank: a rank without one has taken zeros.
void ShardedParameters::exchange_once(bool whole) {
  if (stop_) return;
  gatherer_.require_same_order(group_);
  stop_ = agree_on_used(group_, used_, step_.stop_requested);
  for (auto& unit : units_) unit->reduce(whole);
}

void ShardedParameters::synchronize() {
  exchange_once(true);
}

// Clips the elements of the gradient and its norm over all ranks and parts of the model.
void ShardedParameters::clip() {
  if (options_.clip_value > 0) {
    for (auto& unit : units_) unit->own_gradient().clamp_(-options_.clip_value, options_.clip_value);
  }
  if (options_.clip_norm <= 0) return;
  double squares = 0;
  for (auto& unit : units_) squares += unit->gradient_share(replica_).sum_of_squares(options_.parts);
  if (group_.size() > 1) all_reduce(group_, &squares, 1, DataType::kFp64, ReduceOp::kSum);
  const double norm = std::sqrt(sum_over_parts(options_.parts, squares));
  if (norm <= options_.clip_norm) return;
  for (auto& unit : units_) unit->own_gradient().mul_(options_.clip_norm / (norm + 1e-6));
}

// Only the rank whose share is not finite throws. The other ranks get its error in their next collective.
void ShardedParameters::refuse_unless_finite() const {
  for (const auto& unit : units_) {
    const std::string name = unit->gradient_share(replica_).first_not_finite();
    if (!name.empty())
      refuse_gradient(group_.job_rank(group_.rank()), step_.index,
                      fmt::format("the mean of all ranks' gradients of {}", name));
  }
}

StepReport ShardedParameters::update() {
  const at::NoGradGuard no_grad;
  const Nanoseconds start = clock_.now();
  StepReport report;
  report.loss = own_loss_;
  gatherer_.rethrow();
  for (auto& unit : units_) unit->keep_changes();
  exchange_once(false);
  report.expose(ExchangePhase::kGradients, to_seconds(clock_.now() - start));
  report.expose(ExchangePhase::kParameters, account_.gather_s - at_begin_.gather_s);
  const Nanoseconds reduced = clock_.now();
  held_ = 0;
  for (auto& unit : units_) {
    unit->own_gradient();
    if (options_.releases_gradients) unit->release_gradients(replica_);
    held_ += static_cast<double>(unit->gradient_elements());
  }
  if (!options_.own_gradients) {
    refuse_unless_finite();
    optimizer_->scale_lr(step_.lr_factor);
  }
  clip();
  for (auto& unit : units_) {
    std::vector<double> used;
    for (const size_t i : unit->parameters()) used.push_back(used_[i]);
    unit->range().give(unit->own_gradient(), used);
  }
  optimizer_->step();
  for (auto& unit : units_) {
    unit->range().forget();
    unit->forget_gradients();
    unit->updated();
  }
  report.compute_s = forward_backward_s_ + to_seconds(clock_.now() - reduced);
  report.stop = *stop_;
  if (!options_.own_gradients) {
    const Nanoseconds begin = clock_.now();
    report.loss = agree(group_, own_loss_, false).loss;
    report.expose(ExchangePhase::kAgreement, to_seconds(clock_.now() - begin));
  }
  count_step();
  return report;
}

void ShardedParameters::count_step() {
  gathers_ = static_cast<double>(account_.gathers - at_begin_.gathers);
  received_elements_ = account_.received_elements - at_begin_.received_elements;
}

void ShardedParameters::consensus() {
  const size_t peak = account_.peak_whole_bytes;  // that of steps
  gatherer_.hold(true);
  for (auto& unit : units_) unit->gather();
  gatherer_.rethrow();
  account_.peak_whole_bytes = peak;
  average_buffers(group_, replica_);
}

// Returns a name for this rank's part of the model that no other part has.
const std::string& ShardedParameters::part_name() const {
  for (const NamedTensor& p : replica_.parameters) {
    if (counts_here(options_.parts, p.name)) return p.name;
  }
  return replica_.parameters.front().name;
}

StrategyState ShardedParameters::state() {
  const at::NoGradGuard no_grad;
  gatherer_.rethrow();
  StrategyState state;
  state.step = step_.index;
  for (auto& unit : units_) unit->collect(replica_, state.parameters);
  add_own_optimizer(*optimizer_, group_, group_.size() == 1, part_name(), state);
  if (group_.rank() != 0) return state;
  for (const NamedTensor& b : replica_.buffers)
    state.buffers[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  return state;
}

void ShardedParameters::load_state(const StrategyState& state) {
  const at::NoGradGuard no_grad;
  for (auto& unit : units_) unit->load(replica_, state.parameters);
  if (!state.optimizer.empty())
    load_own_optimizer(*optimizer_, group_, group_.size() == 1, part_name(), state);
  for (NamedTensor& b : replica_.buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  step_.index = state.step;
}

StrategyStats ShardedParameters::strategy_stats() {
  double bytes = 0, elements = 0;
  for (const auto& unit : units_) {
    bytes += static_cast<double>(unit->own_bytes());
    elements += static_cast<double>(unit->share());
  }
  return {{"stage", 3},
          {"parameter_bytes", bytes},
          {"shard_elements", elements},
          {"gradient_elements", held_},
          {"temporary_bytes", static_cast<double>(account_.peak_whole_bytes)},
          {"gathers", gathers_},
          {"units", static_cast<double>(units_.size())},
          {"traffic_elements", received_elements_}};
}

}  // namespace starling
