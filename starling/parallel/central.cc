#include "starling/parallel/central.h"

#include <torch/torch.h>

#include <cmath>
#include <numeric>

#include "starling/base/error.h"

namespace starling {

Central::Central(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                 bool divided, Group& group, const Clock& clock)
    : options_(options),
      rule_(std::move(rule)),
      divided_(divided),
      group_(group),
      clock_(clock),
      replica_(make_replica(factory, options.working, options.seed)) {
  at::NoGradGuard no_grad;
  const size_t locals = group.local_ranks().size();
  if (static_cast<int>(locals) != group.size()) {
    throw ConfigError("exchange.name",
                      "central keeps the parameters in the shared memory of one host, and this job has "
                      "ranks on several: use --exchange all-reduce or parameter-server");
  }
  if (options.working != options.master)
    throw ConfigError("train.precision",
                      "central storage trains in fp32 or fp64; use --exchange all-reduce for bf16");
  if (options.channels_last) to_channels_last(replica_);
  std::vector<size_t> sizes;
  for (const NamedTensor& p : replica_.parameters) sizes.push_back(p.tensor.numel());
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  layout_ = make_flat_layout(sizes, order, std::accumulate(sizes.begin(), sizes.end(), size_t{1}));

  const size_t bytes = layout_.total * at::elementSize(options.master);
  const size_t all = bytes * (1 + rule_.state_count());
  storage_ = group.allocate_window((all + locals - 1) / locals);  // the regions lie in one range
  gradients_ = group.allocate_window(bytes);
  const auto total = static_cast<int64_t>(layout_.total);
  const auto flat = [&](std::byte* data) {
    return at::from_blob(data, {total}, at::TensorOptions(options.master));
  };
  parameters_ = flat(storage_->region(0));
  for (int i = 0; i < rule_.state_count(); ++i)
    states_.push_back(flat(storage_->region(0) + bytes * (1 + i)));
  const at::Tensor own = flat(gradients_->region(group.local_rank()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    at::Tensor& p = replica_.parameters[i].tensor;
    if (group.rank() == 0) view(parameters_, i).copy_(p);
    p.set_data(view(parameters_, i));
    slots_.push_back(GradientSlot::install(p, [] {}));
    slots_.back().slot->bind(view(own, i));
  }
  group.barrier();
}

at::Tensor Central::view(const at::Tensor& flat, size_t parameter) const {
  const at::Tensor& p = replica_.parameters[parameter].tensor;
  return flat.as_strided(p.sizes(), p.strides(), static_cast<int64_t>(layout_.offset[parameter]));
}

double Central::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  for (auto& s : slots_) s.slot->begin();
  const at::Tensor loss = batch_loss(replica_.model, batch, options_.working, options_.channels_last);
  own_loss_ = loss.item<double>();
  if (!std::isfinite(own_loss_)) refuse_loss(replica_, group_.rank(), step_.index, own_loss_);
  loss.backward();
  for (auto& s : slots_) s.slot->fill_unused();
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

template <typename T>
void Central::apply() {
  const size_t ranks = divided_ ? group_.size() : 1, rank = divided_ ? group_.rank() : 0;
  if (!divided_ && group_.rank() != 0) return;
  const auto [begin, end] = share_of(0, layout_.total, rank, ranks);
  if (begin == end) return;
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
  args.count = end - begin;
  rule_.apply(args, step_.lr, step_.index);
}

StepReport Central::update() {
  const Nanoseconds start = clock_.now();
  StepReport report;
  const Agreement agreement =
      agree(group_, own_loss_, step_.stop_requested);  // all gradients lie in place after it
  const Nanoseconds gathered = clock_.now();
  options_.master == at::kDouble ? apply<double>() : apply<float>();
  const Nanoseconds applied = clock_.now();
  if (group_.size() > 1) group_.barrier();
  const Nanoseconds end = clock_.now();
  report.loss = agreement.loss;
  report.stop = agreement.stop;
  report.exposed_comm_s = to_seconds(gathered - start) + to_seconds(end - applied);
  report.compute_s = forward_backward_s_ + to_seconds(applied - gathered);
  const auto p = static_cast<uint64_t>(group_.size());
  const uint64_t bytes = parameters_.nbytes();
  if (divided_) {
    report.bytes_sent =
        bytes * (p - 1) / p + bytes * (p - 1) / p;  // gradients that others read; own share of parameters
  } else {
    report.bytes_sent = group_.rank() == 0 ? bytes * (p - 1) : bytes;
  }
  return report;
}

void Central::consensus() {
  average_buffers(group_, replica_);
}

StrategyState Central::state() {
  StrategyState state;
  state.step = step_.index;
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
  if (group_.size() > 1) group_.barrier();
}

Fingerprint Central::fingerprint() const {
  // Storage beyond the states: the pages of the window that hold parameters.
  const double bytes = static_cast<double>(parameters_.nbytes());
  const double window = static_cast<double>(storage_->bytes()) * group_.size();
  return {{"parameter_bytes", bytes},
          {"resident_parameter_bytes", window - bytes * static_cast<double>(states_.size())},
          {"divided", divided_ ? 1.0 : 0.0}};
}

}  // namespace starling
