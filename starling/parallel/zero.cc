#include "starling/parallel/zero.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/plan/memory.h"

namespace starling {

Zero::Zero(const ModelFactory& factory, UpdateRule rule, const ZeroOptions& options, Group& group,
           const Clock& clock)
    : options_(options),
      rule_(std::move(rule)),
      group_(group),
      clock_(clock),
      peak_{options.memory != nullptr ? options.memory->live() : 0},
      replica_(make_replica(factory, options.replica.working, options.replica.seed)) {
  STARLING_CHECK(options.stage >= 1 && options.stage <= 3, "ZeRO has stages 1 to 3, not {}", options.stage);
  if (options.stage == 3 && replica_.model.blocks.empty()) {
    throw ConfigError("train.shard",
                      "--shard parameters gathers the model block by block, and this model has no blocks: "
                      "fill Model::blocks (starling/nn/blocks.h), or use --shard gradients");
  }
  if (options.replica.channels_last) to_channels_last(replica_);
  share_initial_values();
  const std::vector<UnitPlan> plans = options.stage == 3
                                          ? plan_blocks(replica_, tensors_of_blocks(replica_.model))
                                          : plan_buckets(replica_, options.bucket_bytes);
  const auto on_filled = [this] {
    if (options_.stage < 3) reduce_filled();
  };
  for (const UnitPlan& plan : plans) {
    units_.push_back(std::make_unique<ZeroUnit>(plan, replica_, options.stage, rule_, options.replica.master,
                                                ZeroSurroundings{group_, clock_, account_}, on_filled));
  }
  if (options_.memory != nullptr) peak_.held = options_.memory->live() - peak_.before;
}

// Those of rank 0, whatever the factory made elsewhere.
void Zero::share_initial_values() {
  if (group_.size() == 1) return;
  at::NoGradGuard no_grad;
  const auto share = [&](at::Tensor& tensor) {
    at::Tensor value = tensor.detach().contiguous();
    group_.broadcast(value.data_ptr(), value.numel(), data_type_of(value.scalar_type()), 0);
    if (value.data_ptr() != tensor.data_ptr()) tensor.copy_(value);
  };
  for (NamedTensor& p : replica_.parameters) share(p.tensor);
  for (NamedTensor& b : replica_.buffers) share(b.tensor);
}

void Zero::begin_step(const Step& step) {
  step_ = step;
  for (auto& unit : units_) unit->release();  // what consensus() has gathered
  step_begins();
}

double Zero::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  account_.communication_s = account_.received_elements = 0;
  reduced_ = 0;
  for (auto& unit : units_) unit->begin_pass();
  forward_begins();
  own_loss_ = options_.stage == 3 ? run_by_blocks(batch) : run_whole(batch);
  forward_backward_s_ = to_seconds(clock_.now() - start) - account_.communication_s;
  return own_loss_;
}

double Zero::run_whole(const Batch& batch) {
  const at::Tensor loss =
      batch_loss(replica_.model, batch, options_.replica.working, options_.replica.channels_last);
  const double value = loss.item<double>();
  if (!std::isfinite(value)) refuse(value);
  forward_ends();
  loss.backward();
  for (auto& unit : units_) unit->fill_unused();
  STARLING_CHECK(reduced_ == units_.size(), "{} of {} units have been reduced", reduced_, units_.size());
  return value;
}

// On the thread of backward. In the order of the units, which is the same on all ranks.
void Zero::reduce_filled() {
  while (reduced_ < units_.size() && units_[reduced_]->missing() == 0) units_[reduced_++]->reduce();
}

void Zero::gather_for(size_t block) {
  for (auto& unit : units_) {
    if (unit->plan().first_block <= block && block <= unit->plan().last_block) unit->gather();
  }
}

double Zero::run_by_blocks(const Batch& batch) {
  if (replica_.model.samples) replica_.model.samples->keys = batch.keys;
  const std::vector<Block>& blocks = replica_.model.blocks;
  const size_t n = blocks.size();
  std::vector<Tensors> inputs(n), outputs(n);
  for (size_t b = 0; b < n; ++b) {
    if (b == 0) {
      inputs[b] = {input_of(batch, options_.replica.working, options_.replica.channels_last)};
    } else {  // leaves, whose gradients go back to the block before
      for (const at::Tensor& t : outputs[b - 1])
        inputs[b].push_back(t.detach().requires_grad_(t.requires_grad()));
    }
    gather_for(b);
    outputs[b] = blocks[b].forward(inputs[b]);
    if (b + 1 == n) outputs[b] = {replica_.model.loss(outputs[b].at(0), batch.target)};
    for (auto& unit : units_) {
      if (unit->plan().last_block == b) unit->release();
    }
  }
  const double value = outputs[n - 1][0].item<double>();
  if (!std::isfinite(value)) refuse(value);
  forward_ends();
  Tensors gradients = {at::ones_like(outputs[n - 1][0])};
  for (size_t b = n; b-- > 0;) {
    backward_block(b, inputs[b], outputs[b], gradients);
    gradients.clear();
    for (const at::Tensor& t : inputs[b]) gradients.push_back(t.grad());
    inputs[b].clear();
    outputs[b].clear();
  }
  return value;
}

// gradients: of the outputs, undefined where the block behind does not use one.
void Zero::backward_block(size_t block, const Tensors& inputs, const Tensors& outputs,
                          const Tensors& gradients) {
  gather_for(block);
  Tensors roots, of_roots;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !gradients.at(i).defined()) continue;
    roots.push_back(outputs[i]);
    of_roots.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, of_roots);
  for (auto& unit : units_) {
    if (unit->plan().first_block != block) continue;
    unit->fill_unused();
    unit->reduce();
    unit->release();
  }
}

StepReport Zero::update() {
  const Nanoseconds start = clock_.now();
  StepReport report;
  const Agreement agreement = agree(group_, own_loss_, step_.stop_requested);
  report.loss = agreement.loss;
  report.stop = agreement.stop;
  double scale = 1.0 / group_.size();
  if (options_.replica.clip_norm > 0) {
    double squares = 0;
    for (const auto& unit : units_) squares += unit->sum_of_squares(replica_, options_.replica.parts);
    if (group_.size() > 1) group_.all_reduce(&squares, 1, DataType::kFp64, ReduceOp::kSum);
    const double norm = scale * std::sqrt(sum_over_parts(options_.replica.parts, squares));
    if (norm > options_.replica.clip_norm) scale *= options_.replica.clip_norm / (norm + 1e-6);
  }
  const Nanoseconds agreed = clock_.now();
  for (auto& unit : units_) unit->apply(scale, step_);
  const Nanoseconds applied = clock_.now();
  for (auto& unit : units_) unit->publish();
  report.compute_s = forward_backward_s_ + to_seconds(applied - agreed);
  report.exposed_comm_s = account_.communication_s + to_seconds(agreed - start);
  traffic_elements_ = account_.received_elements;
  step_ends();
  return report;
}

void Zero::step_begins() {
  if (options_.memory == nullptr) return;
  if (!peak_.begun)
    peak_.before = options_.memory->live() - peak_.held;  // the loader's batches are there now
  peak_.begun = true;
  options_.memory->restart_peak();
}

// What units take for a while is theirs, not an activation's.
void Zero::forward_begins() {
  if (options_.memory != nullptr)
    peak_.forward_begin = options_.memory->live() - static_cast<int64_t>(account_.temporary_bytes);
}

void Zero::forward_ends() {
  if (options_.memory == nullptr) return;
  const int64_t now = options_.memory->live() - static_cast<int64_t>(account_.temporary_bytes);
  peak_.activations = std::max(peak_.activations, now - peak_.forward_begin);
}

void Zero::step_ends() {
  if (options_.memory != nullptr) peak_.peak = std::max(peak_.peak, options_.memory->peak() - peak_.before);
}

void Zero::consensus() {
  const size_t peak = account_.peak_temporary_bytes;  // of steps
  for (auto& unit : units_) unit->gather();
  account_.peak_temporary_bytes = peak;
  average_buffers(group_, replica_);
}

StrategyState Zero::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  for (auto& unit : units_) unit->collect(replica_, state);
  if (group_.rank() != 0) return state;
  for (const NamedTensor& b : replica_.buffers)
    state.buffers[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  return state;
}

void Zero::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  for (auto& unit : units_) unit->load(replica_, state);
  for (NamedTensor& b : replica_.buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  step_.index = state.step;
}

// Stage 3 has no whole parameters to look at.
void Zero::refuse(double loss) const {
  if (options_.stage < 3) refuse_loss(replica_, group_.rank(), step_.index, loss);
  throw Error(ErrorCode::kNumeric,
              fmt::format("rank {}: the loss is {} at step {}; try a lower --lr, warm-up (--set "
                          "schedule.warmup_steps=…) or --set optimizer.clip_norm=1",
                          group_.rank(), loss, step_.index),
              group_.rank());
}

Fingerprint Zero::fingerprint() const {
  double psi = 0, padding = 0, parameters = 0, gradients = 0, optimizer = 0, formula = 0;
  for (const auto& unit : units_) {
    const auto elements = static_cast<double>(unit->elements());
    psi += elements;
    padding += static_cast<double>(unit->padding());
    parameters += static_cast<double>(unit->parameter_bytes());
    gradients += static_cast<double>(unit->gradient_bytes());
    optimizer += static_cast<double>(unit->optimizer_bytes());
    const Precision precision = options_.replica.master == at::kDouble ? Precision::kFp64
                                : unit->is_mixed()                     ? Precision::kBf16
                                                                       : Precision::kFp32;
    formula += zero_state_bytes(element_bytes(precision, rule_.state_count()), elements, group_.size(),
                                options_.stage)
                   .total();
  }
  Fingerprint print = {{"stage", options_.stage},
                       {"parameters", psi},
                       {"padding", padding},
                       {"parameter_bytes", parameters},
                       {"gradient_bytes", gradients},
                       {"optimizer_bytes", optimizer},
                       {"held_bytes", parameters + gradients + optimizer},
                       {"formula_bytes", formula},
                       {"temporary_bytes", static_cast<double>(account_.peak_temporary_bytes)},
                       {"traffic_elements", traffic_elements_},
                       {"traffic_formula", zero_traffic_elements(psi, group_.size(), options_.stage)}};
  if (options_.memory != nullptr) {
    const auto activations = static_cast<double>(peak_.activations);
    print["peak_bytes"] = static_cast<double>(peak_.peak);
    print["activation_bytes"] = activations;
    print["peak_formula"] = formula + print["temporary_bytes"] + activations;
  }
  return print;
}

}  // namespace starling
