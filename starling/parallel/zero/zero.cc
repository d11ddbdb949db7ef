#include "starling/parallel/zero/zero.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/replica/batch_parts.h"
#include "starling/parallel/replica/broadcast_tensor.h"
#include "starling/parallel/replica/codec_shapes.h"
#include "starling/parallel/replica/message_stats.h"
#include "starling/plan/memory.h"
#include "starling/spec/optimizer_refusal.h"

namespace starling {
namespace {

// Returns the name of what the codec keeps on a rank. part: the name of this rank's part of the model.
std::string name_of_values(int rank, const std::string& part) {
  return fmt::format("values@{}/{}", rank, part);
}

}  // namespace

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
  if (updates_by_tensor(rule_.spec())) layers_.emplace(rule_.spec());
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
                                                ZeroEnvironment{group_, clock_, account_}, on_filled));
  }
  if (options_.codec) {
    STARLING_CHECK(options.stage == 1 || (options.stage == 2 && options.replica.accumulate == 1),
                   "a codec encodes a gradient once in each step");
    for (size_t i = 0; i < units_.size(); ++i) units_[i]->encode_gradients(*options_.codec, i);
  }
  if (options_.memory != nullptr) peak_.held = options_.memory->live() - peak_.before;
}

// Broadcasts the values of rank 0, whatever the factory made on other ranks.
void Zero::share_initial_values() {
  if (group_.size() == 1) return;
  for (NamedTensor& p : replica_.parameters) broadcast_tensor(group_, p.tensor, 0);
  for (NamedTensor& b : replica_.buffers) broadcast_tensor(group_, b.tensor, 0);
}

void Zero::begin_step(const Step& step) {
  step_ = step;
  for (auto& unit : units_) {
    unit->hide_average(replica_);
    unit->release();  // what consensus() has gathered
  }
  step_begins();
}

double Zero::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  account_.gradients_s = account_.parameters_s = account_.received_elements = 0;
  const std::vector<Batch> parts = cut_batch(batch, options_.replica.accumulate);
  PartSteps steps;
  steps.forward = [this](const Batch& part) {
    forward_begins();
    return options_.stage == 3
               ? forward_by_blocks(part)
               : batch_loss(replica_.model, part, options_.replica.working, options_.replica.channels_last);
  };
  steps.backward = [&](const at::Tensor& loss, size_t index) {
    forward_ends();
    begin_backward(index, parts.size());
    options_.stage == 3 ? backward_by_blocks(loss) : backward_whole(loss, index + 1 == parts.size());
  };
  steps.scale_gradients = [this](double factor) {
    for (auto& unit : units_) unit->scale_gradients(factor);
  };
  weighing_s_ = 0;
  steps.factor = [this](const BatchLoss& whole) {
    const Nanoseconds begin = clock_.now();
    const double factor = share_factor(whole, &group_, options_.replica.global_batch);
    weighing_s_ = to_seconds(clock_.now() - begin);
    return factor;
  };
  steps.check = [this](double loss) {
    if (!std::isfinite(loss)) refuse(loss);
  };
  own_loss_ = batch_by_parts(parts, steps);
  forward_backward_s_ = to_seconds(clock_.now() - start) - account_.communication_s() - weighing_s_;
  return own_loss_;
}

// Prepares the units for the gradients of part `index` of the batch. Stage 1 has memory for all gradients, so
// it adds those of the parts and reduces once. Stages 2 and 3 reduce those of each part, and add the shares.
void Zero::begin_backward(size_t index, size_t parts) {
  const bool holds = options_.stage == 1;
  adds_ = !holds && index > 0;
  for (auto& unit : units_) {
    if (!holds || index == 0) unit->begin_pass();
    unit->expect_more(holds && index + 1 < parts);
  }
  reduced_ = 0;
}

void Zero::backward_whole(const at::Tensor& loss, bool last) {
  loss.backward();
  if (options_.stage == 1 && !last) return;
  for (auto& unit : units_) unit->fill_unused();
  STARLING_CHECK(reduced_ == units_.size(), "only {} of {} units have been reduced", reduced_, units_.size());
}

// Runs on the thread of backward. Reduces units in their order, which is equal on all ranks.
void Zero::reduce_filled() {
  while (reduced_ < units_.size() && units_[reduced_]->missing() == 0)
    units_[reduced_++]->reduce(adds_, step_.index);
}

void Zero::gather_for(size_t block) {
  for (auto& unit : units_) {
    if (unit->plan().first_block <= block && block <= unit->plan().last_block) unit->gather();
  }
}

// Keeps the inputs and outputs of each block for backward_by_blocks().
BatchLoss Zero::forward_by_blocks(const Batch& batch) {
  if (replica_.model.samples) replica_.model.samples->keys = batch.keys;
  const std::vector<Block>& blocks = replica_.model.blocks;
  const size_t n = blocks.size();
  inputs_.assign(n, {});
  outputs_.assign(n, {});
  BatchLoss result;
  for (size_t b = 0; b < n; ++b) {
    if (b == 0) {
      inputs_[b] = inputs_of(replica_.model, batch, options_.replica.working, options_.replica.channels_last);
    } else {  // inputs are leaves, whose gradients are passed to the previous block
      for (const at::Tensor& t : outputs_[b - 1])
        inputs_[b].push_back(t.detach().requires_grad_(t.requires_grad()));
    }
    gather_for(b);
    outputs_[b] = blocks[b].forward(inputs_[b]);
    if (b + 1 == n) {
      const ModelLoss& of = replica_.model.loss;
      const WeightedLoss loss = of.of(outputs_[b], batch.targets());
      result = {loss.sum, of.weighted() ? loss.weight : static_cast<double>(batch.size()), of.weighted()};
    }
    for (auto& unit : units_) {
      if (unit->plan().last_block == b) unit->release();
    }
  }
  return result;
}

void Zero::backward_by_blocks(const at::Tensor& loss) {
  outputs_.back() = {loss};
  Tensors gradients = {at::ones_like(loss)};
  for (size_t b = inputs_.size(); b-- > 0;) {
    backward_block(b, inputs_[b], outputs_[b], gradients);
    gradients.clear();
    for (const at::Tensor& t : inputs_[b]) gradients.push_back(t.grad());
    inputs_[b].clear();
    outputs_[b].clear();
  }
}

// gradients: those of the outputs, undefined if the next block does not use an output.
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
    unit->reduce(adds_, step_.index);
    unit->release();
  }
}

// Returns the factor that makes the mean over the ranks of what the units hold. With a codec they hold means.
double Zero::gradient_scale() const {
  return options_.codec ? 1.0 : 1.0 / group_.size();
}

StepReport Zero::update() {
  const Nanoseconds start = clock_.now();
  StepReport report;
  const Agreement agreement = agree(group_, own_loss_, step_.stop_requested);
  report.loss = agreement.loss;
  report.stop = agreement.stop;
  double scale = gradient_scale();
  if (options_.replica.clip_value > 0) {
    // The limit is for the mean over the ranks, and the units may hold sums. Clipping would make an infinity
    // finite.
    for (auto& unit : units_) {
      if (!unit->gradient_share(replica_).first_not_finite().empty()) refuse_gradient_of(*unit);
      unit->clip_elements(options_.replica.clip_value / scale);
    }
  }
  if (options_.replica.clip_norm > 0) {
    double squares = 0;
    for (const auto& unit : units_)
      squares += unit->gradient_share(replica_).sum_of_squares(options_.replica.parts);
    if (group_.size() > 1) all_reduce(group_, &squares, 1, DataType::kFp64, ReduceOp::kSum);
    const double norm = scale * std::sqrt(sum_over_parts(options_.replica.parts, squares));
    if (norm > options_.replica.clip_norm) scale *= options_.replica.clip_norm / (norm + 1e-6);
  }
  std::vector<LayerSquares> squares;
  if (layers_) squares = squares_of_layers(scale);
  const Nanoseconds agreed = clock_.now();
  for (auto& unit : units_) {
    const bool finite = layers_ ? unit->apply(*layers_, squares, scale, step_) : unit->apply(scale, step_);
    if (!finite) refuse_gradient_of(*unit);
  }
  const Nanoseconds applied = clock_.now();
  for (auto& unit : units_) unit->publish();
  report.compute_s = forward_backward_s_ + to_seconds(applied - agreed);
  report.expose(ExchangePhase::kGradients, account_.gradients_s);
  report.expose(ExchangePhase::kParameters, account_.parameters_s);
  report.expose(ExchangePhase::kAgreement, weighing_s_ + to_seconds(agreed - start));
  traffic_elements_ = account_.received_elements;
  step_ends();
  return report;
}

// Returns the squares of every parameter, summed over all ranks that hold parts of it.
std::vector<LayerSquares> Zero::squares_of_layers(double scale) {
  std::vector<LayerSquares> squares(replica_.parameters.size());
  if (!layers_->needs_squares()) return squares;
  for (const auto& unit : units_) unit->add_squares(*layers_, scale, step_, squares);
  static_assert(sizeof(LayerSquares) == 2 * sizeof(double));
  if (group_.size() > 1)
    all_reduce(group_, squares.data(), 2 * squares.size(), DataType::kFp64, ReduceOp::kSum);
  sum_over_slices(options_.replica.parts, replica_.parameters, squares);
  return squares;
}

void Zero::step_begins() {
  if (options_.memory == nullptr) return;
  if (!peak_.begun) peak_.before = options_.memory->live() - peak_.held;  // includes the loader's batches
  peak_.begun = true;
  options_.memory->restart_peak();
}

// Bytes that units hold temporarily are not counted as activations.
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
  // The peak counts steps only, so gather() must not change it.
  const size_t peak = account_.peak_temporary_bytes;
  for (auto& unit : units_) {
    unit->hide_average(replica_);
    unit->gather();
  }
  account_.peak_temporary_bytes = peak;
  average_buffers(group_, replica_);
}

void Zero::show_average() {
  if (rule_.average_state() < 0) return;
  for (auto& unit : units_) unit->show_average(replica_);
}

StrategyState Zero::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  for (auto& unit : units_) unit->collect(replica_, state);
  if (const at::Tensor own = codec_state(); own.defined()) {
    const std::vector<at::Tensor> all = gather_flat(group_, own);
    for (size_t r = 0; r < all.size(); ++r)
      state.optimizer[name_of_values(static_cast<int>(r),
                                     name_of_part(options_.replica.parts, replica_.parameters))] = all[r];
  }
  if (group_.rank() != 0) return state;
  for (const NamedTensor& b : replica_.buffers)
    state.buffers[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  return state;
}

void Zero::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  for (auto& unit : units_) unit->load(replica_, state);
  if (options_.codec && !state.optimizer.empty()) load_codec_state(state);
  for (NamedTensor& b : replica_.buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  step_.index = state.step;
}

// Returns what the codec keeps on this rank, unit by unit, or an undefined tensor if it keeps nothing.
at::Tensor Zero::codec_state() const {
  std::vector<float> values;
  for (const auto& unit : units_) {
    if (unit->coded() == nullptr) continue;
    const std::vector<float> own = unit->coded()->state();
    values.insert(values.end(), own.begin(), own.end());
  }
  return values.empty() ? at::Tensor() : at::tensor(values, at::kFloat);
}

void Zero::load_codec_state(const StrategyState& state) {
  const at::Tensor own = codec_state();
  if (!own.defined()) return;
  const std::string name =
      name_of_values(group_.rank(), name_of_part(options_.replica.parts, replica_.parameters));
  const auto kept = state.optimizer.find(name);
  // If the checkpoint has none, fitting() throws the error that names them.
  const at::Tensor values =
      (kept != state.optimizer.end() ? kept->second : fitting(state.optimizer, name, own))
          .to(at::kFloat)
          .contiguous();
  std::span<const float> left = codec_values(values);
  for (const auto& unit : units_) {
    const size_t count = std::min(left.size(), unit->coded()->state_size());
    unit->coded()->load_state(left.first(count));
    left = left.subspan(count);
  }
}

// Throws Error(kNumeric). With stage 3, no whole parameters exist that the message could name.
void Zero::refuse(double loss) const {
  const int self = group_.job_rank(group_.rank());
  if (options_.stage < 3) refuse_loss(replica_, self, step_.index, loss);
  refuse_loss(self, step_.index, loss);
}

// Only the rank whose share is not finite throws. The other ranks get its error in their next collective,
// before they publish or save what this update has made.
void Zero::refuse_gradient_of(const ZeroUnit& unit) const {
  const std::string name = unit.gradient_share(replica_).first_not_finite();
  refuse_gradient(group_.job_rank(group_.rank()), step_.index,
                  name.empty() ? std::string("the mean gradient of all ranks")
                               : fmt::format("the sum of all ranks' gradients of {}", name));
}

StrategyStats Zero::strategy_stats() {
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
  StrategyStats stats = {{"stage", options_.stage},
                         {"parameters", psi},
                         {"padding", padding},
                         {"parameter_bytes", parameters},
                         {"gradient_bytes", gradients},
                         {"optimizer_bytes", optimizer},
                         {"held_bytes", parameters + gradients + optimizer},
                         {"formula_bytes", formula},
                         {"temporary_bytes", static_cast<double>(account_.peak_temporary_bytes)},
                         {"traffic_elements", traffic_elements_},
                         {"traffic_formula", zero_traffic_elements(psi, group_.size(), options_.stage,
                                                                   options_.replica.accumulate)}};
  if (options_.codec) tell_codec(stats);
  if (options_.memory != nullptr) {
    const auto activations = static_cast<double>(peak_.activations);
    stats["peak_bytes"] = static_cast<double>(peak_.peak);
    stats["activation_bytes"] = activations;
    stats["peak_formula"] = formula + stats["temporary_bytes"] + activations;
  }
  return stats;
}

void Zero::tell_codec(StrategyStats& stats) const {
  double sent = 0, plain = 0, formula = 0, kept = 0, squares = 0;
  bool feedback = false;
  for (const auto& unit : units_) {
    const CodedReduceScatter& coded = *unit->coded();
    sent += static_cast<double>(coded.sent()) / std::max<double>(1, static_cast<double>(coded.times()));
    plain += unit->plain_bytes();
    formula += coded.formula();
    kept += static_cast<double>(coded.kept_bytes());
    const std::optional<double> norm = coded.residual_norm();
    feedback |= norm.has_value();
    squares += norm.value_or(0) * norm.value_or(0);
  }
  tell_messages(group_, sent, plain, stats);
  const double element = at::elementSize(options_.replica.working);
  stats["traffic_formula"] = stats["traffic_formula"] / 2 + formula / element;
  stats["codec_bytes"] = kept;
  if (feedback) stats["residual_norm"] = std::sqrt(squares);
}

std::unique_ptr<Strategy> make_zero(const ExchangeParts& parts) {
  ZeroOptions options;
  options.stage = static_cast<int>(parts.spec.train.shard);
  options.replica = parts.replica;
  options.bucket_bytes = static_cast<size_t>(parts.spec.train.bucket_mb * (1 << 20));
  options.memory = &count_tensor_memory();
  if (parts.spec.exchange.codec != "none") options.codec = codec_of(parts.spec);
  return std::make_unique<Zero>(parts.factory, make_update_rule(parts.spec.optimizer), options, parts.group,
                                parts.clock);
}

}  // namespace starling
