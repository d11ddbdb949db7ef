#include "starling/parallel/flat_replica.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <numeric>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/comm/bootstrap.h"

namespace starling {
namespace {

constexpr uint32_t kGatherTag = 0x5f1a7;

}  // namespace

FlatReplica::FlatReplica(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options)
    : options_(options),
      rule_(std::move(rule)),
      alone_(make_single_group()),
      replica_(make_replica(factory, options.working, options.seed)) {
  at::NoGradGuard no_grad;
  if (options.channels_last) to_channels_last(replica_);
  for (const NamedTensor& p : replica_.parameters) sizes_.push_back(p.tensor.numel());
  std::vector<size_t> order(sizes_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  layout_ = make_flat_layout(sizes_, order, std::accumulate(sizes_.begin(), sizes_.end(), size_t{1}));
  FlatMemoryOptions memory;
  memory.total = layout_.total;
  memory.states = rule_.state_count();
  memory.master = options.master;
  memory.working = options.working;
  memory_ = std::make_unique<FlatMemory>(*alone_, memory);

  const auto total = static_cast<int64_t>(layout_.total);
  const at::Tensor like = at::empty({total}, options.master);
  parameters_ = memory_->master_view(0, like);
  working_gradients_ = memory_->gradient_view(0, 0, at::empty({total}, options.working));
  gradients_ = options.working == options.master ? working_gradients_ : at::zeros({total}, options.master);
  for (int i = 0; i < rule_.state_count(); ++i) states_.push_back(memory_->state_view(i, 0, like));
  for (size_t i = 0; i < sizes_.size(); ++i) {
    at::Tensor& p = replica_.parameters[i].tensor;
    const bool in_master = p.scalar_type() == options.master;
    memory_->master_view(layout_.offset[i], p).copy_(p);
    if (!in_master) memory_->working_view(layout_.offset[i], p).copy_(p);
    p.set_data(in_master ? memory_->master_view(layout_.offset[i], p)
                         : memory_->working_view(layout_.offset[i], p));
    slots_.push_back(GradientSlot::install(p, [] {}));
    slots_.back().slot->bind(memory_->gradient_view(0, layout_.offset[i], p));
  }
}

FlatReplica::~FlatReplica() = default;

void FlatReplica::parameters_changed() {
  if (options_.working == options_.master) return;
  const at::Tensor flat = at::empty({static_cast<int64_t>(layout_.total)}, options_.working);
  memory_->working_view(0, flat).copy_(parameters_);
}

double FlatReplica::forward_backward(const Batch& batch, int64_t step) {
  for (auto& s : slots_) s.slot->begin();
  const Model& model = replica_.model;
  const at::Tensor loss = batch_loss(model, batch, options_.working, options_.channels_last);
  const double value = loss.item<double>();
  if (!std::isfinite(value)) refuse_loss(replica_, options_.rank, step, value);
  loss.backward();
  for (auto& s : slots_) s.slot->fill_unused();
  if (!working_gradients_.is_same(gradients_)) gradients_.copy_(working_gradients_);
  return value;
}

double FlatReplica::loss_of(const Batch& batch) {
  at::NoGradGuard no_grad;
  const Model& model = replica_.model;
  model.module->eval();  // running statistics stay, nothing is dropped
  const double loss = batch_loss(model, batch, options_.working, options_.channels_last).item<double>();
  model.module->train();
  return loss;
}

namespace {

template <typename T>
void apply_rule(const UpdateRule& rule, const at::Tensor& parameters, const at::Tensor& gradients,
                const std::vector<at::Tensor>& states, double scale, const Step& step) {
  const T* sources[] = {gradients.data_ptr<T>()};
  std::vector<const T*> in;
  std::vector<T*> out;
  for (const at::Tensor& s : states) {
    in.push_back(s.data_ptr<T>());
    out.push_back(s.data_ptr<T>());
  }
  UpdateArgs<T, T> args;
  args.gradients = sources;
  args.gradient_scale = scale;
  args.parameter = parameters.data_ptr<T>();
  args.parameter_out = parameters.data_ptr<T>();
  args.state = in.data();
  args.state_out = out.data();
  args.count = static_cast<size_t>(parameters.numel());
  rule.apply(args, step.lr, step.index);
}

}  // namespace

double FlatReplica::squares(const at::Tensor& flat) const {
  double sum = 0;
  const auto holes = ranges_counted_elsewhere(options_.parts, replica_.parameters, layout_);
  for (const auto& [begin, end] : pieces_outside(0, layout_.total, holes)) {
    const auto from = static_cast<int64_t>(begin), to = static_cast<int64_t>(end);
    const double norm = flat.narrow(0, from, to - from).norm().item<double>();
    sum += norm * norm;
  }
  return sum_over_parts(options_.parts, sum);
}

void FlatReplica::update(const Step& step) {
  double scale = 1;
  if (options_.clip_norm > 0) {
    const double norm = std::sqrt(squares(gradients_));
    if (norm > options_.clip_norm) scale = options_.clip_norm / (norm + 1e-6);
  }
  if (options_.master == at::kDouble) {
    apply_rule<double>(rule_, parameters_, gradients_, states_, scale, step);
  } else {
    apply_rule<float>(rule_, parameters_, gradients_, states_, scale, step);
  }
  parameters_changed();
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
    group.send(flat.data_ptr(), flat.nbytes(), 0, kGatherTag);
    return all;
  }
  all.push_back(flat.clone());
  for (int r = 1; r < group.size(); ++r) {
    all.push_back(at::empty_like(flat));
    group.recv(all.back().data_ptr(), flat.nbytes(), r, kGatherTag);
  }
  return all;
}

void average_buffers(Group& group, Replica& replica) {
  if (group.size() == 1) return;
  at::NoGradGuard no_grad;
  for (NamedTensor& b : replica.buffers) {
    at::Tensor whole = b.tensor.contiguous();
    const DataType type = data_type_of(whole.scalar_type());
    if (whole.is_floating_point()) {
      group.all_reduce(whole.data_ptr(), whole.numel(), type, ReduceOp::kAvg);
    } else {
      group.broadcast(whole.data_ptr(), whole.numel(), type, 0);
    }
    if (!whole.is_same(b.tensor)) b.tensor.copy_(whole);
  }
}

Agreement agree(Group& group, double loss, bool stop_requested) {
  double sum[2] = {loss, stop_requested ? 1.0 : 0.0};
  if (group.size() > 1) group.all_reduce(sum, 2, DataType::kFp64, ReduceOp::kSum);
  return {sum[0] / group.size(), sum[1] > 0};
}

}  // namespace starling
