#include "starling/parallel/replica/flat_replica.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <numeric>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/message_tags.h"
#include "starling/optim/finite.h"
#include "starling/parallel/replica/batch_parts.h"
#include "starling/parallel/replica/broadcast_tensor.h"
#include "starling/parallel/replica/own_gradients.h"
#include "starling/spec/optimizer_refusal.h"

namespace starling {

namespace {

// The rule of a replica whose optimizer is the user's: it has no states and is not applied.
UpdateRule no_rule() {
  OptimizerSpec spec;
  spec.name = "sgd";
  spec.momentum = 0;
  return make_update_rule(spec);
}

}  // namespace

FlatReplica::FlatReplica(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options)
    : options_(options),
      rule_(options.optimizer ? no_rule() : std::move(rule)),
      alone_(make_single_group()),
      replica_(make_replica(factory, options.working, options.seed)) {
  at::NoGradGuard no_grad;
  if (options.channels_last) to_channels_last(replica_);
  for (const NamedTensor& p : replica_.parameters) sizes_.push_back(p.tensor.numel());
  std::vector<size_t> order(sizes_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  layout_ = make_flat_layout(sizes_, order, std::accumulate(sizes_.begin(), sizes_.end(), size_t{1}));
  const auto multiple = static_cast<size_t>(options.multiple_of);
  layout_.total = (layout_.total + multiple - 1) / multiple * multiple;
  FlatMemoryOptions memory;
  memory.total = layout_.total;
  memory.states = rule_.state_count();
  memory.master = options.master;
  memory.working = options.working;
  memory.threads = options.releases_gradients ? 0 : 1;
  memory_ = std::make_unique<FlatMemory>(*alone_, memory);

  const auto total = static_cast<int64_t>(layout_.total);
  const at::Tensor like = at::empty({total}, options.master);
  parameters_ = memory_->master_view(0, like);
  if (!options.releases_gradients) {
    working_gradients_ = memory_->gradient_view(0, 0, at::empty({total}, options.working));
    gradients_ = options.working == options.master ? working_gradients_ : at::zeros({total}, options.master);
  }
  for (int i = 0; i < rule_.state_count(); ++i) states_.push_back(memory_->state_view(i, 0, like));
  for (size_t i = 0; i < sizes_.size(); ++i) {
    at::Tensor& p = replica_.parameters[i].tensor;
    const bool in_master = p.scalar_type() == options.master;
    memory_->master_view(layout_.offset[i], p).copy_(p);
    if (!in_master) memory_->working_view(layout_.offset[i], p).copy_(p);
    p.set_data(in_master ? memory_->master_view(layout_.offset[i], p)
                         : memory_->working_view(layout_.offset[i], p));
    if (options.own_gradients) continue;
    slots_.push_back(GradientSlot::install(p, [] {}));
    if (!options.releases_gradients)
      slots_.back().slot->bind(memory_->gradient_view(0, layout_.offset[i], p));
  }
  if (options.optimizer) make_optimizer();
  if (!updates_by_tensor(rule_.spec())) return;
  layers_.emplace(rule_.spec());
  for (size_t i = 0; i < sizes_.size(); ++i)
    layer_parts_.push_back(
        {layout_.offset[i], layout_.offset[i] + sizes_[i], i, replica_.parameters[i].tensor.dim() <= 1});
}

void FlatReplica::make_optimizer() {
  used_.assign(sizes_.size(), 1);
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const NamedTensor& p = replica_.parameters[i];
    const auto offset = static_cast<int64_t>(layout_.offset[i]);
    if (gradients_.defined()) gradient_of_.push_back(on_memory_of(gradients_, offset, p.tensor));
    optimized_.push_back(p);
    if (p.tensor.scalar_type() == options_.master) continue;
    optimized_.back().tensor = on_memory_of(parameters_, offset, p.tensor).set_requires_grad(true);
  }
  optimizer_ = options_.optimizer(optimized_);
}

FlatReplica::~FlatReplica() = default;

void FlatReplica::parameters_changed() {
  if (options_.working == options_.master) return;
  const at::Tensor flat = at::empty({static_cast<int64_t>(layout_.total)}, options_.working);
  memory_->working_view(0, flat).copy_(parameters_);
}

double FlatReplica::forward_backward(const Batch& batch, int64_t step) {
  hold_gradients();
  for (auto& s : slots_) s.slot->begin();
  const std::vector<Batch> parts = cut_batch(batch, options_.accumulate);
  PartSteps steps =
      steps_by_slots(replica_.model, options_.working, options_.channels_last, slots_, parts.size());
  steps.factor = [&](const BatchLoss& whole) {
    loss_weight_ = whole.weight;
    const Nanoseconds begin = options_.clock == nullptr ? Nanoseconds{} : options_.clock->now();
    const double factor =
        share_factor(whole, options_.mean_over, options_.mean_over == nullptr ? 0 : options_.global_batch);
    if (options_.clock != nullptr) weighing_s_ = to_seconds(options_.clock->now() - begin);
    return factor;
  };
  steps.check = [&](double loss) {
    if (!std::isfinite(loss)) refuse_loss(replica_, options_.rank, step, loss);
  };
  const double value = batch_by_parts(parts, steps);
  for (auto& s : slots_) s.slot->fill_unused();
  if (!working_gradients_.is_same(gradients_)) gradients_.copy_(working_gradients_);
  return value;
}

double FlatReplica::loss_of(const Batch& batch) {
  at::NoGradGuard no_grad;
  const Model& model = replica_.model;
  model.module->eval();  // keeps running statistics and turns dropout off
  double sum = 0;
  loss_weight_ = 0;
  for (const Batch& part : cut_batch(batch, options_.accumulate)) {
    const BatchLoss loss = batch_loss(model, part, options_.working, options_.channels_last);
    sum += loss.sum.item<double>() * (loss.weighted ? 1 : loss.weight);
    loss_weight_ += loss.weight;
  }
  model.module->train();
  return sum / (loss_weight_ > 0 ? loss_weight_ : 1);
}

// Updates the parameters. Returns whether the gradients are finite.
template <typename T>
bool FlatReplica::apply_rule(double scale, const Step& step) {
  const T* sources[] = {gradients_.data_ptr<T>()};
  std::vector<T*> states;
  states.reserve(states_.size());
  for (const at::Tensor& s : states_) states.push_back(s.data_ptr<T>());
  UpdateArgs<T, T> args;
  args.gradients = sources;
  args.gradient_scale = scale;
  args.parameter = args.parameter_out = parameters_.data_ptr<T>();
  args.state = args.state_out = states.data();
  args.count = static_cast<size_t>(parameters_.numel());
  if (!layers_) return rule_.apply(args, step.lr, step.index);
  std::vector<LayerSquares> squares(sizes_.size());
  layers_->add_squares(args, layer_parts_, step.index, squares);
  if (layers_->needs_squares()) sum_over_slices(options_.parts, replica_.parameters, squares);
  return layers_->apply(args, layer_parts_, step.lr, step.index, squares);
}

double FlatReplica::own_squares(const at::Tensor& flat, int64_t begin) const {
  double sum = 0;
  const auto holes = ranges_counted_elsewhere(options_.parts, replica_.parameters, layout_);
  const auto first = static_cast<size_t>(begin), end = first + static_cast<size_t>(flat.numel());
  for (const auto& [from, to] : pieces_outside(first, end, holes)) {
    const at::Tensor piece =
        flat.narrow(0, static_cast<int64_t>(from - first), static_cast<int64_t>(to - from));
    const double norm = piece.norm().item<double>();
    sum += norm * norm;
  }
  return sum;
}

double FlatReplica::squares(const at::Tensor& flat) const {
  return sum_over_parts(options_.parts, own_squares(flat, 0));
}

double FlatReplica::clipping_scale() {
  if (options_.clip_value > 0) gradients_.clamp_(-options_.clip_value, options_.clip_value);
  if (options_.clip_norm <= 0) return 1;
  const double norm = std::sqrt(squares(gradients_));
  return norm > options_.clip_norm ? options_.clip_norm / (norm + 1e-6) : 1;
}

// Makes the memory of the gradients, if it does not exist. Pages are touched when gradients are copied to
// them.
void FlatReplica::hold_gradients() {
  if (!options_.releases_gradients || gradients_.defined()) return;
  const auto total = static_cast<int64_t>(layout_.total);
  working_gradients_ = at::empty({total}, options_.working);
  gradients_ = options_.working == options_.master ? working_gradients_ : at::empty({total}, options_.master);
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const at::Tensor& p = replica_.parameters[i].tensor;
    const auto offset = static_cast<int64_t>(layout_.offset[i]);
    const auto end = offset + static_cast<int64_t>(sizes_[i]);
    const auto next = i + 1 < sizes_.size() ? static_cast<int64_t>(layout_.offset[i + 1]) : total;
    working_gradients_.narrow(0, end, next - end).zero_();  // padding
    if (!slots_.empty()) slots_[i].slot->bind(on_memory_of(working_gradients_, offset, p));
    if (optimizer_) gradient_of_.push_back(on_memory_of(gradients_, offset, p));
  }
}

void FlatReplica::release_gradients() {
  if (!options_.releases_gradients || !gradients_.defined()) return;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    at::Tensor& gradient = replica_.parameters[i].tensor.mutable_grad();
    if (gradient.defined() && gradient.storage().is_alias_of(gradients_.storage())) gradient.reset();
    if (!slots_.empty()) slots_[i].slot->unbind();
  }
  gradient_of_.clear();
  working_gradients_.reset();
  gradients_.reset();
}

void FlatReplica::take_own_gradients(double weight) {
  at::NoGradGuard no_grad;
  hold_gradients();
  for (size_t i = 0; i < sizes_.size(); ++i)
    used_[i] = take_gradient(replica_.parameters[i], gradient_of_[i]) ? 1 : 0;
  if (weight != 1) gradients_.mul_(weight);
}

// Gives the optimizer its gradients and lets it update the parameters.
void FlatReplica::step_optimizer(const Step& step) {
  at::NoGradGuard no_grad;
  if (!options_.own_gradients) {
    check(step.index, options_.updates_with);
    optimizer_->scale_lr(step.lr_factor);
  }
  if (const double scale = clipping_scale(); scale != 1) gradients_.mul_(scale);
  for (size_t i = 0; i < sizes_.size(); ++i) {
    at::Tensor& gradient = optimized_[i].tensor.mutable_grad();
    if (used_[i] > 0) {
      gradient = gradient_of_[i];
    } else {
      gradient.reset();
    }
  }
  optimizer_->step();
  if (options_.own_gradients) return;
  for (NamedTensor& p : optimized_) p.tensor.mutable_grad().reset();
}

void FlatReplica::update(const Step& step) {
  if (optimizer_) {
    step_optimizer(step);
    return parameters_changed();
  }
  if (options_.clip_value > 0)
    check(step.index, options_.updates_with);  // clipping would make an infinity finite
  const double scale = clipping_scale();
  const bool finite =
      options_.master == at::kDouble ? apply_rule<double>(scale, step) : apply_rule<float>(scale, step);
  if (!finite) refuse_gradients(step.index, options_.updates_with);
  parameters_changed();
}

void FlatReplica::check_gradients(int64_t step) const {
  check(step, "the gradient of");
}

// Throws the error for elements that are not finite, if there are any. `what` begins the message.
void FlatReplica::check(int64_t step, const std::string& what) const {
  const auto count = static_cast<size_t>(gradients_.numel());
  const bool finite = options_.master == at::kDouble ? all_finite(gradients_.data_ptr<double>(), count)
                                                     : all_finite(gradients_.data_ptr<float>(), count);
  if (!finite) refuse_gradients(step, what);
}

void FlatReplica::refuse_gradients(int64_t step, const std::string& what) const {
  const std::string name = first_not_finite(replica_, [this](size_t i) {
    return gradients_.narrow(0, static_cast<int64_t>(layout_.offset[i]), static_cast<int64_t>(sizes_[i]));
  });
  refuse_gradient(options_.rank, step,
                  name.empty() ? std::string("the scaled gradient") : fmt::format("{} {}", what, name));
}

void FlatReplica::show(const at::Tensor& parameters) {
  if (!aside_.defined()) aside_ = parameters_.clone();
  parameters_.copy_(parameters);
  parameters_changed();
}

void FlatReplica::hide() {
  if (!aside_.defined()) return;
  parameters_.copy_(aside_);
  parameters_changed();
  aside_.reset();
}

void FlatReplica::unflatten(const at::Tensor& flat, const std::string& prefix,
                            std::map<std::string, at::Tensor>& out) const {
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const at::Tensor& p = replica_.parameters[i].tensor;
    out[prefix + replica_.parameters[i].name] =
        flat.as_strided(p.sizes(), p.strides(), static_cast<int64_t>(layout_.offset[i]))
            .clone(at::MemoryFormat::Contiguous);
  }
}

void FlatReplica::flatten(const std::map<std::string, at::Tensor>& in, const std::string& prefix,
                          at::Tensor& flat) const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const at::Tensor& p = replica_.parameters[i].tensor;
    flat.as_strided(p.sizes(), p.strides(), static_cast<int64_t>(layout_.offset[i]))
        .copy_(fitting(in, prefix + replica_.parameters[i].name, p));
  }
}

std::vector<at::Tensor> gather_flat(Group& group, const at::Tensor& flat) {
  std::vector<at::Tensor> all;
  if (group.rank() != 0) {
    send(group, flat.data_ptr(), flat.nbytes(), 0, kGatherTag);
    return all;
  }
  all.push_back(flat.clone());
  for (int r = 1; r < group.size(); ++r) {
    all.push_back(at::empty_like(flat));
    recv(group, all.back().data_ptr(), flat.nbytes(), r, kGatherTag);
  }
  return all;
}

void average_buffers(Group& group, Replica& replica) {
  if (group.size() == 1) return;
  at::NoGradGuard no_grad;
  for (NamedTensor& b : replica.buffers) {
    if (!b.tensor.is_floating_point()) {
      broadcast_tensor(group, b.tensor, 0);
      continue;
    }
    at::Tensor whole = b.tensor.contiguous();
    all_reduce(group, whole.data_ptr(), whole.numel(), data_type_of(whole.scalar_type()), ReduceOp::kAvg);
    if (!whole.is_same(b.tensor)) b.tensor.copy_(whole);
  }
}

Agreement agree(Group& group, double loss, bool stop_requested) {
  double sum[2] = {loss, stop_requested ? 1.0 : 0.0};
  if (group.size() > 1) all_reduce(group, sum, 2, DataType::kFp64, ReduceOp::kSum);
  return {sum[0] / group.size(), sum[1] > 0};
}

}  // namespace starling
