#include "starling/parallel/hybrid.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "starling/base/error.h"
#include "starling/nn/tensor_parallel/shard_for_all_samples.h"
#include "starling/parallel/replica/tensor_state.h"

namespace starling {
namespace {

constexpr const char* kDataParallel = "data";  // the counter of the sums of data-parallel gradients

using Named = std::map<std::string, at::Tensor>;

// The replica must not clip, because it knows only the norm of its own part.
FlatReplicaOptions options_of_part(FlatReplicaOptions options, Group& group) {
  options.clip_norm = options.clip_value = 0;
  options.mean_over = &group;
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
            slices_ = shard_for_all_samples(model, layers_, options_.layers);
            return model;
          },
          std::move(rule), options_of_part(options.replica, group)),
      whole_(make_replica(factory, options.replica.working, options.replica.seed)) {
  find_ranges();
}

// Finds the ranges whose gradients are summed and those whose gradients are not. Consecutive parameters of
// one kind form one range.
void Hybrid::find_ranges() {
  const FlatLayout& layout = replica_.layout();
  const auto& parameters = replica_.replica().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto begin = static_cast<int64_t>(layout.offset[i]);
    const auto aligned = (replica_.sizes()[i] + kFlatAlign - 1) / kFlatAlign * kFlatAlign;
    const auto end = begin + static_cast<int64_t>(aligned);  // includes the padding, which is zero
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

// Model-parallel layers compute on the samples of all ranks at once, so all samples need one shape. The ranks
// compare the shapes of their first batches; each rank then compares its batches with its first.
void Hybrid::check_shape(const Batch& batch) {
  std::vector<int64_t> shape;
  for (const at::Tensor& input : batch.inputs()) {
    shape.push_back(-1);
    shape.insert(shape.end(), input.sizes().begin() + 1, input.sizes().end());
  }
  if (shape == shape_) return;
  bool fits = shape_.empty();
  if (fits) {
    shape_ = shape;
    const auto own = static_cast<int64_t>(
        std::hash<std::string_view>()({reinterpret_cast<const char*>(shape.data()), 8 * shape.size()}));
    std::vector<int64_t> all(static_cast<size_t>(group_.size()));
    all_gather(group_, &own, all.data(), 1, DataType::kInt64);
    fits = std::count(all.begin(), all.end(), own) == group_.size();
  }
  if (!fits)
    throw ConfigError("train.hybrid",
                      "model-parallel layers need samples of one shape, but samples of this data set differ; "
                      "pad all of them to one length, or train with --hybrid none");
}

double Hybrid::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  check_shape(batch);
  own_loss_ = replica_.forward_backward(batch, step_.index);
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

// Clips by the norm of the whole model's gradient. A parameter that every rank has counts once.
double Hybrid::clip_scale() {
  if (options_.replica.clip_norm <= 0) return 1;
  double shared = 0, own = 0;
  for (const Range& range : ranges_) {
    const double norm =
        replica_.gradients().narrow(0, range.begin, range.end - range.begin).norm().item<double>();
    (range.model_parallel ? own : shared) += norm * norm;
  }
  if (group_.size() > 1) all_reduce(group_, &own, 1, DataType::kFp64, ReduceOp::kSum);
  const double norm = std::sqrt(shared + own);
  return norm > options_.replica.clip_norm ? options_.replica.clip_norm / (norm + 1e-6) : 1;
}

StepReport Hybrid::update() {
  const Nanoseconds start = clock_.now();
  const double waited_before = layers_.seconds();
  at::NoGradGuard no_grad;
  replica_.check_gradients(step_.index);  // afterwards no rank can tell whose gradient was not finite
  for (const Range& range : ranges_) {
    at::Tensor gradient = replica_.gradients().narrow(0, range.begin, range.end - range.begin);
    if (!range.model_parallel && group_.size() > 1) gradient.copy_(layers_.sum(gradient, kDataParallel));
    gradient.div_(group_.size());
  }
  const double limit = options_.replica.clip_value;
  if (limit > 0) {
    replica_.check_gradients(step_.index);  // clipping would make an infinity finite
    replica_.gradients().clamp_(-limit, limit);
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
  report.expose(ExchangePhase::kGradients, summing_s);
  report.expose(ExchangePhase::kActivations, layers_.seconds() - summing_s);
  report.expose(ExchangePhase::kAgreement, to_seconds(clock_.now() - updated));
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

// Frees the whole parameters. One element, expanded to the parameter's shape, keeps names, shapes and counts
// right.
void Hybrid::let_go() {
  if (!gathered_) return;
  at::NoGradGuard no_grad;
  for (NamedTensor& p : whole_.parameters)
    p.tensor.set_data(at::zeros({}, p.tensor.options()).expand(p.tensor.sizes()));
  gathered_ = false;
}

// Collects the whole tensors of a flat range on rank 0.
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
  // If there are only weights, the optimizer starts anew.
  if (!state.optimizer.empty()) {
    const Named optimizer = cut_state(state.optimizer, slices_, group_.size(), group_.rank());
    const auto names = replica_.rule().state_names();
    for (int s = 0; s < replica_.rule().state_count(); ++s)
      replica_.flatten(optimizer, std::string(names[static_cast<size_t>(s)]) + "/", replica_.state(s));
  }
  for (NamedTensor& b : replica_.replica().buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  replica_.parameters_changed();
  step_.index = state.step;
}

StrategyStats Hybrid::strategy_stats() {
  StrategyStats stats;
  double model = 0, data = 0, data_elements = 0;
  for (const auto& [layer, traffic] : traffic_) {
    if (layer == kDataParallel) {
      data = traffic.bytes;
    } else {
      stats["model_parallel/" + layer] = traffic.bytes;
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
  stats["model_parallel_layers"] = static_cast<double>(options_.layers.size());
  stats["model_parallel_bytes"] = model;
  stats["data_parallel_bytes"] = data;
  stats["data_parallel_formula"] = 2 * data_elements * element * (p - 1) / p;
  stats["held_bytes"] = held * element;
  stats["whole_bytes"] = whole * element;
  return stats;
}

}  // namespace starling
