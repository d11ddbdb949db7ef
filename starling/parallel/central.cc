#include "starling/parallel/central.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "starling/base/error.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/replica/batch_parts.h"

namespace starling {
namespace {

// The rule of a copy that an own optimizer updates. It is never applied.
UpdateRule stateless_rule() {
  OptimizerSpec spec;
  spec.momentum = 0;
  return make_update_rule(spec);
}

}  // namespace

Central::Central(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                 bool sharded, Group& group, const Clock& clock)
    : options_(options),
      rule_(options.optimizer ? stateless_rule() : std::move(rule)),
      sharded_(sharded),
      group_(group),
      clock_(clock),
      replica_(make_replica(factory, options.working, options.seed)) {
  at::NoGradGuard no_grad;
  const size_t locals = group.local_ranks().size();
  if (static_cast<int>(locals) != group.size()) {
    throw ConfigError("exchange.name",
                      "central keeps the parameters in the shared memory of one host, but this job "
                      "has ranks on several hosts; use --exchange all-reduce or parameter-server");
  }
  if (options.working != options.master)
    throw ConfigError("train.precision",
                      "central storage trains in fp32 or fp64; use --exchange all-reduce for bf16");
  if (options.channels_last) to_channels_last(replica_);
  place_parameters();
  if (options.optimizer) make_optimizer();
  barrier(group);
}

// Moves the parameters into the shared memory of the host.
void Central::place_parameters() {
  std::vector<size_t> sizes;
  for (const NamedTensor& p : replica_.parameters) sizes.push_back(p.tensor.numel());
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  layout_ = make_flat_layout(sizes, order, std::accumulate(sizes.begin(), sizes.end(), size_t{1}));

  const size_t locals = group_.local_ranks().size();
  const size_t bytes = layout_.total * at::elementSize(options_.master);
  const size_t all = bytes * (1 + rule_.state_count());
  // The regions of the window lie in one range.
  storage_ = group_.allocate_window((all + locals - 1) / locals);
  gradients_ = group_.allocate_window(bytes);
  const auto total = static_cast<int64_t>(layout_.total);
  // Each tensor keeps its window alive, also after the run.
  const auto flat = [&](const std::shared_ptr<Window>& window, std::byte* data) {
    return at::from_blob(data, {total}, [window](void*) {}, at::TensorOptions(options_.master));
  };
  parameters_ = flat(storage_, storage_->region(0));
  for (int i = 0; i < rule_.state_count(); ++i)
    states_.push_back(flat(storage_, storage_->region(0) + bytes * (1 + i)));
  const at::Tensor own = gradients_of(group_.local_rank());
  for (size_t i = 0; i < sizes.size(); ++i) {
    at::Tensor& p = replica_.parameters[i].tensor;
    if (group_.rank() == 0) view(parameters_, i).copy_(p);
    p.set_data(view(parameters_, i));
    if (options_.optimizer)
      gradient_of_.push_back(on_memory_of(own, static_cast<int64_t>(layout_.offset[i]), p));
    if (options_.own_gradients) continue;
    slots_.push_back(GradientSlot::install(p, [] {}));
    slots_.back().slot->bind(view(own, i));
  }
}

void Central::make_optimizer() {
  optimizer_ = options_.optimizer(replica_.parameters);
  used_.assign(replica_.parameters.size(), 1);
  if (!sharded_) return;
  const auto [begin, count] = own_elements();
  range_.emplace(replica_.parameters, layout_, elements_of(parameters_, begin, count), begin);
  shard_optimizer(*optimizer_, range_->parts(), "exchange.central", "use --central master");
}

// Returns the flat gradients of a local rank, which are in its part of the window.
at::Tensor Central::gradients_of(int rank) const {
  return at::from_blob(
      gradients_->region(rank), {static_cast<int64_t>(layout_.total)}, [window = gradients_](void*) {},
      at::TensorOptions(options_.master));
}

std::pair<int64_t, int64_t> Central::own_elements() const {
  const size_t ranks = sharded_ ? group_.size() : 1, rank = sharded_ ? group_.rank() : 0;
  if (!sharded_ && group_.rank() != 0) return {0, 0};
  const auto [begin, end] = share_of(0, layout_.total, rank, ranks);
  return {static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)};
}

at::Tensor Central::view(const at::Tensor& flat, size_t parameter) const {
  const at::Tensor& p = replica_.parameters[parameter].tensor;
  return flat.as_strided(p.sizes(), p.strides(), static_cast<int64_t>(layout_.offset[parameter]));
}

double Central::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  for (auto& s : slots_) s.slot->begin();
  const std::vector<Batch> parts = cut_batch(batch, options_.accumulate);
  PartSteps steps =
      steps_by_slots(replica_.model, options_.working, options_.channels_last, slots_, parts.size());
  weighing_s_ = 0;
  steps.factor = [&](const BatchLoss& whole) {
    const Nanoseconds begin = clock_.now();
    const double factor = share_factor(whole, &group_, options_.global_batch);
    weighing_s_ = to_seconds(clock_.now() - begin);
    return factor;
  };
  steps.check = [&](double loss) {
    if (!std::isfinite(loss)) refuse_loss(replica_, group_.job_rank(group_.rank()), step_.index, loss);
  };
  own_loss_ = batch_by_parts(parts, steps);
  for (auto& s : slots_) s.slot->fill_unused();
  forward_backward_s_ = to_seconds(clock_.now() - start) - weighing_s_;
  return own_loss_;
}

template <typename T>
void Central::apply() {
  const auto [begin, count] = own_elements();
  if (count == 0) return;
  std::vector<const T*> sources;
  for (int r = 0; r < group_.size(); ++r)
    sources.push_back(reinterpret_cast<const T*>(gradients_->region(r)) + begin);
  std::vector<const T*> in;
  std::vector<T*> out;
  for (const at::Tensor& s : states_) {
    in.push_back(s.data_ptr<T>() + begin);
    out.push_back(s.data_ptr<T>() + begin);
  }
  UpdateArgs<T, T> args;
  args.gradients = sources.data();
  args.sources = static_cast<int>(sources.size());
  args.gradient_scale = 1.0 / group_.size();
  args.parameter = args.parameter_out = parameters_.data_ptr<T>() + begin;
  args.state = in.data();
  args.state_out = out.data();
  args.count = static_cast<size_t>(count);
  if (!rule_.apply(args, step_.lr, step_.index)) refuse();
}

// Names the rank and the parameter whose gradient is not finite. It looks only at the elements that this rank
// updates, and at its own gradients last: reduce() may have replaced them by the mean.
void Central::refuse() const {
  const auto [begin, count] = own_elements();
  const int64_t first = begin, last = begin + count;
  for (int i = 1; i <= group_.size(); ++i) {
    const int r = (group_.rank() + i) % group_.size();
    const at::Tensor gradients = gradients_of(r);
    const std::string name = first_not_finite(replica_, [&](size_t p) {
      const auto offset = static_cast<int64_t>(layout_.offset[p]);
      const int64_t from = std::max(offset, first);
      const int64_t to = std::min(offset + replica_.parameters[p].tensor.numel(), last);
      return gradients.narrow(0, from < to ? from : first, std::max<int64_t>(0, to - from));
    });
    if (!name.empty())
      refuse_gradient(group_.job_rank(r), step_.index, fmt::format("the gradient of {}", name));
  }
  refuse_gradient(group_.job_rank(group_.rank()), step_.index, "the mean gradient of all ranks");
}

void Central::take_gradients(const OwnStep& step) {
  step_.lr = step.lr;
  own_loss_ = 0;
  agreed_.reset();
  exchanged_ = false;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < used_.size(); ++i)
    used_[i] = take_gradient(replica_.parameters[i], gradient_of_[i]) ? 1 : 0;
  if (const double factor = step.weight * step.scale; factor != 1)
    gradients_of(group_.local_rank()).mul_(factor);
}

// Returns when the gradients of all ranks are in place.
void Central::agree_on_step() {
  if (agreed_) return;
  if (options_.own_gradients) {
    agreed_ = Agreement{0, agree_on_used(group_, used_, step_.stop_requested)};
  } else {
    agreed_ = agree(group_, own_loss_, step_.stop_requested);
  }
}

// Replaces these elements of this rank's gradients by the mean over the ranks.
void Central::reduce(int64_t begin, int64_t count) {
  at::Tensor own = gradients_of(group_.local_rank()).narrow(0, begin, count);
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.local_rank()) own.add_(gradients_of(r).narrow(0, begin, count));
  }
  own.div_(group_.size());
}

void Central::synchronize() {
  const at::NoGradGuard no_grad;
  agree_on_step();
  if (exchanged_ || group_.size() == 1) return;
  // Each rank reduces a share in its own memory. No rank writes what another rank reads.
  const int ranks = group_.size();
  const auto share = [&](int rank) {
    const auto [begin, end] =
        share_of(0, layout_.total, static_cast<size_t>(rank), static_cast<size_t>(ranks));
    return std::pair{static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)};
  };
  const int me = group_.local_rank();
  const auto [own_begin, own_count] = share(me);
  reduce(own_begin, own_count);
  barrier(group_);
  at::Tensor own = gradients_of(me);
  for (int r = 0; r < ranks; ++r) {
    const auto [begin, count] = share(r);
    if (r != me) own.narrow(0, begin, count).copy_(gradients_of(r).narrow(0, begin, count));
  }
  barrier(group_);
  exchanged_ = true;
}

// Updates this rank's elements by the optimizer of the program.
void Central::apply_own() {
  const at::NoGradGuard no_grad;
  const auto [begin, count] = own_elements();
  if (exchanged_) barrier(group_);  // a rank may have read parameters since synchronize()
  if (!options_.own_gradients) optimizer_->scale_lr(step_.lr_factor);
  if (count == 0) return;
  if (!exchanged_ && group_.size() > 1) reduce(begin, count);
  const at::Tensor own = gradients_of(group_.local_rank());
  if (!options_.own_gradients && !own.narrow(0, begin, count).isfinite().all().item<bool>()) refuse();
  if (range_) return range_->step(*optimizer_, own.narrow(0, begin, count), used_);
  for (size_t i = 0; i < used_.size(); ++i) {
    at::Tensor& gradient = replica_.parameters[i].tensor.mutable_grad();
    gradient = used_[i] > 0 ? gradient_of_[i] : at::Tensor();
  }
  optimizer_->step();
  if (options_.own_gradients) return;
  for (NamedTensor& p : replica_.parameters) p.tensor.mutable_grad().reset();
}

StepReport Central::update() {
  const Nanoseconds start = clock_.now();
  StepReport report;
  if (!options_.own_gradients) agreed_.reset();
  agree_on_step();
  const Nanoseconds gathered = clock_.now();
  if (optimizer_) {
    apply_own();
  } else {
    options_.master == at::kDouble ? apply<double>() : apply<float>();
  }
  const Nanoseconds applied = clock_.now();
  if (group_.size() > 1) barrier(group_);
  const Nanoseconds end = clock_.now();
  report.loss = agreed_->loss;
  report.stop = agreed_->stop;
  report.expose(ExchangePhase::kAgreement, weighing_s_);
  report.expose(ExchangePhase::kGradients, to_seconds(gathered - start));
  report.expose(ExchangePhase::kParameters, to_seconds(end - applied));
  report.compute_s = forward_backward_s_ + to_seconds(applied - gathered);
  report.bytes_sent = bytes_in_windows();
  return report;
}

// Returns the bytes that this rank publishes in a step: its gradients, each to the rank that reduces it, and
// the parameters that it updates, to all other ranks.
uint64_t Central::bytes_in_windows() const {
  const auto p = static_cast<uint64_t>(group_.size());
  uint64_t own = group_.rank() == 0 ? layout_.total : 0;  // elements that this rank updates
  if (sharded_) {
    const auto [begin, end] = share_of(0, layout_.total, group_.rank(), group_.size());
    own = end - begin;
  }
  return (layout_.total - own + (p - 1) * own) * at::elementSize(options_.master);
}

void Central::consensus() {
  average_buffers(group_, replica_);
}

StrategyState Central::state() {
  StrategyState state;
  state.step = step_.index;
  const std::string& first = replica_.parameters.front().name;
  if (optimizer_ && (sharded_ || group_.rank() == 0))
    add_own_optimizer(*optimizer_, group_, !sharded_, first, state);
  if (group_.rank() != 0) return state;
  const auto copy = [](const at::Tensor& t) { return t.detach().clone(at::MemoryFormat::Contiguous); };
  for (size_t i = 0; i < replica_.parameters.size(); ++i) {
    const std::string& name = replica_.parameters[i].name;
    state.parameters[name] = copy(view(parameters_, i));
    for (size_t s = 0; s < states_.size(); ++s)
      state.optimizer[rule_.state_names()[s] + "/" + name] = copy(view(states_[s], i));
  }
  for (const NamedTensor& b : replica_.buffers) state.buffers[b.name] = copy(b.tensor);
  return state;
}

void Central::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  // If there are only weights, the optimizer starts anew. In mode `master` only that of rank 0 has a state.
  if (optimizer_ && !state.optimizer.empty() && (sharded_ || group_.rank() == 0))
    load_own_optimizer(*optimizer_, group_, !sharded_, replica_.parameters.front().name, state);
  for (size_t i = 0; i < replica_.parameters.size(); ++i) {
    const NamedTensor& p = replica_.parameters[i];
    const at::Tensor& value = fitting(state.parameters, p.name, p.tensor);
    if (group_.rank() == 0) view(parameters_, i).copy_(value);
    for (size_t s = 0; s < states_.size() && !state.optimizer.empty(); ++s) {
      const at::Tensor& kept = fitting(state.optimizer, rule_.state_names()[s] + "/" + p.name, p.tensor);
      if (group_.rank() == 0) view(states_[s], i).copy_(kept);
    }
  }
  for (NamedTensor& b : replica_.buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  step_.index = state.step;
  if (group_.size() > 1) barrier(group_);
}

StrategyStats Central::strategy_stats() {
  // The window holds parameters and states. What remains without the states is the memory of the parameters.
  const double bytes = static_cast<double>(parameters_.nbytes());
  const double window = static_cast<double>(storage_->bytes()) * group_.size();
  return {{"parameter_bytes", bytes},
          {"resident_parameter_bytes", window - bytes * static_cast<double>(states_.size())},
          {"sharded", sharded_ ? 1.0 : 0.0}};
}

std::unique_ptr<Strategy> make_central(const ExchangeParts& parts) {
  return std::make_unique<Central>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica,
                                   parts.spec.exchange.central == CentralMode::kSharded, parts.group,
                                   parts.clock);
}

}  // namespace starling
