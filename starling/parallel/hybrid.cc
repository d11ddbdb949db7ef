#include "starling/parallel/hybrid.h"

#include <torch/torch.h>

#include <cmath>

#include "starling/nn/tensor_parallel/all_samples.h"
#include "starling/parallel/tensor_state.h"

namespace starling {
namespace {

constexpr const char* kDataParallel = "data";  // whom the sums of data-parallel gradients are counted for

using Named = std::map<std::string, at::Tensor>;

// The replica must not clip: it knows the norm of its own part only.
FlatReplicaOptions without_clipping(FlatReplicaOptions options) {
  options.clip_norm = 0;
  return options;
}

}  // namespace

Hybrid::Hybrid(const ModelFactory& factory, UpdateRule rule, const HybridOptions& options, Group& group,
               const Clock& clock)
    : options_(options),
      group_(group),
      clock_(clock),
      layers_(group, clock),
      replica_(
          [&] {
            Model model = factory();
            slices_ = divide_for_all_samples(model, layers_, options_.layers);
            return model;
          },
          std::move(rule), without_clipping(options.replica)),
      whole_(make_replica(factory, options.replica.working, options.replica.seed)) {
  find_ranges();
}

// Where gradients are to be summed and where not: parameters of one kind that follow each other are one range.
void Hybrid::find_ranges() {
  const FlatLayout& layout = replica_.layout();
  const auto& parameters = replica_.replica().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto begin = static_cast<int64_t>(layout.offset[i]);
    const auto aligned = (replica_.sizes()[i] + kFlatAlign - 1) / kFlatAlign * kFlatAlign;
    const auto end = begin + static_cast<int64_t>(aligned);  // the padding behind a tensor is zero
    const bool sliced = is_sliced(parameters[i].name);
    if (!ranges_.empty() && ranges_.back().model_parallel == sliced) {
      ranges_.back().end = end;
    } else {
      ranges_.push_back({begin, end, sliced});
    }
  }
}

void Hybrid::begin_step(const Step& step) {
  step_ = step;
  let_go();
  layers_.reset_traffic();
}

double Hybrid::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  own_loss_ = replica_.forward_backward(batch, step_.index);
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

// Clipping by the norm of the whole model's gradient: what every rank has counts once.
double Hybrid::clip_scale() {
  if (options_.replica.clip_norm <= 0) return 1;
  double shared = 0, own = 0;
  for (const Range& range : ranges_) {
    const double norm =
        replica_.gradients().narrow(0, range.begin, range.end - range.begin).norm().item<double>();
    (range.model_parallel ? own : shared) += norm * norm;
  }
  if (group_.size() > 1) group_.all_reduce(&own, 1, DataType::kFp64, ReduceOp::kSum);
  const double norm = std::sqrt(shared + own);
  return norm > options_.replica.clip_norm ? options_.replica.clip_norm / (norm + 1e-6) : 1;
}

StepReport Hybrid::update() {
  const Nanoseconds start = clock_.now();
  const double waited_before = layers_.seconds();
  at::NoGradGuard no_grad;
  for (const Range& range : ranges_) {
    at::Tensor gradient = replica_.gradients().narrow(0, range.begin, range.end - range.begin);
    if (!range.model_parallel && group_.size() > 1) gradient.copy_(layers_.sum(gradient, kDataParallel));
    gradient.div_(group_.size());
  }
  const double scale = clip_scale();
  if (scale != 1) replica_.gradients().mul_(scale);
  const double summing_s = layers_.seconds() - waited_before;
  replica_.update(step_);
  const Nanoseconds updated = clock_.now();
  const Agreement agreement = agree(group_, own_loss_, step_.stop_requested);
  StepReport report;
  report.loss = agreement.loss;
  report.stop = agreement.stop;
  report.compute_s = forward_backward_s_ - waited_before + to_seconds(updated - start) - summing_s;
  report.exposed_comm_s = layers_.seconds() + to_seconds(clock_.now() - updated);
  traffic_ = layers_.traffic();
  return report;
}

at::Tensor Hybrid::whole_of(const std::string& parameter, const at::Tensor& part) {
  const auto slice = slices_.find(parameter);
  if (slice == slices_.end()) return part;
  const int64_t dim = slice->second.dim;
  return layers_.gather(part, dim, slice->second.sizes[static_cast<size_t>(dim)], "state");
}

void Hybrid::consensus() {
  at::NoGradGuard no_grad;
  average_buffers(group_, replica_.replica());
  const auto& parts = replica_.replica().parameters;
  for (size_t i = 0; i < parts.size(); ++i) {
    at::Tensor& whole = whole_.parameters[i].tensor;
    const at::Tensor value = whole_of(parts[i].name, parts[i].tensor.detach());
    if (gathered_) {
      whole.copy_(value);
    } else {
      whole.set_data(value.clone());
    }
  }
  for (size_t i = 0; i < whole_.buffers.size(); ++i)
    whole_.buffers[i].tensor.copy_(replica_.replica().buffers[i].tensor);
  gathered_ = true;
}

// One element that has the parameter's shape: names, shapes and counts stay right.
void Hybrid::let_go() {
  if (!gathered_) return;
  at::NoGradGuard no_grad;
  for (NamedTensor& p : whole_.parameters)
    p.tensor.set_data(at::zeros({}, p.tensor.options()).expand(p.tensor.sizes()));
  gathered_ = false;
}

// Whole tensors of a flat range on rank 0.
void Hybrid::collect(const at::Tensor& flat, const std::string& prefix, Named& out) {
  Named parts;
  replica_.unflatten(flat, "", parts);
  for (const auto& [name, part] : parts) {
    const at::Tensor whole = whole_of(name, part);
    if (group_.rank() == 0) out[prefix + name] = whole;
  }
}

StrategyState Hybrid::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  collect(replica_.parameters(), "", state.parameters);
  const auto names = replica_.rule().state_names();
  for (int s = 0; s < replica_.rule().state_count(); ++s)
    collect(replica_.state(s), std::string(names[static_cast<size_t>(s)]) + "/", state.optimizer);
  if (group_.rank() == 0) {
    for (const NamedTensor& b : replica_.replica().buffers) state.buffers[b.name] = b.tensor.detach().clone();
  }
  return state;
}

void Hybrid::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  replica_.flatten(cut_state(state.parameters, slices_, group_.size(), group_.rank()), "",
                   replica_.parameters());
  if (!state.optimizer.empty()) {  // weights alone: the optimizer begins afresh
    const Named optimizer = cut_state(state.optimizer, slices_, group_.size(), group_.rank());
    const auto names = replica_.rule().state_names();
    for (int s = 0; s < replica_.rule().state_count(); ++s)
      replica_.flatten(optimizer, std::string(names[static_cast<size_t>(s)]) + "/", replica_.state(s));
  }
  for (NamedTensor& b : replica_.replica().buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  replica_.parameters_changed();
  step_.index = state.step;
}

Fingerprint Hybrid::fingerprint() const {
  Fingerprint print;
  double model = 0, data = 0, data_elements = 0;
  for (const auto& [layer, traffic] : traffic_) {
    if (layer == kDataParallel) {
      data = traffic.bytes;
    } else {
      print["model_parallel/" + layer] = traffic.bytes;
      model += traffic.bytes;
    }
  }
  for (const Range& range : ranges_) {
    if (!range.model_parallel) data_elements += static_cast<double>(range.end - range.begin);
  }
  const double element = static_cast<double>(at::elementSize(options_.replica.master));
  const double p = group_.size();
  double held = 0, whole = 0;
  for (const size_t size : replica_.sizes()) held += static_cast<double>(size);
  for (const NamedTensor& w : whole_.parameters) whole += static_cast<double>(w.tensor.numel());
  print["model_parallel_layers"] = static_cast<double>(options_.layers.size());
  print["model_parallel_bytes"] = model;
  print["data_parallel_bytes"] = data;
  print["data_parallel_formula"] = 2 * data_elements * element * (p - 1) / p;
  print["held_bytes"] = held * element;
  print["whole_bytes"] = whole * element;
  return print;
}

}  // namespace starling
