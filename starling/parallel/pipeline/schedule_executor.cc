#include "starling/parallel/pipeline/schedule_executor.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/replica/replica.h"
#include "starling/plan/schedule_check.h"

namespace starling {
namespace {

// A tag names the content of a message, the sender's chunk and the micro-batch. The tensors of one activation
// have the same tag and arrive in order. The tag of shapes has no micro-batch, because the shapes are sent
// with the first activation.
enum class Content : uint32_t { kShapes = 0, kActivation = 1, kGradient = 2 };
constexpr int kMicroBatchBits = 20, kChunkBits = 6;

// The tags of pipelines end below those of their other messages.
static_assert(kPipelineTag + (3u << (kMicroBatchBits + kChunkBits)) <= kTiedTag);

uint32_t tag_of(Content content, int chunk, int micro_batch) {
  return kPipelineTag | static_cast<uint32_t>(content) << (kMicroBatchBits + kChunkBits) |
         static_cast<uint32_t>(chunk) << kMicroBatchBits | static_cast<uint32_t>(micro_batch);
}

at::Tensor sendable(const at::Tensor& tensor) {
  return tensor.detach().contiguous();
}

}  // namespace

ScheduleExecutor::ScheduleExecutor(const Schedule& schedule, const std::vector<size_t>& cut,
                                   const Model& model, at::ScalarType type,
                                   const ActivationSettings& activations, Group& group, const Clock& clock)
    : schedule_(schedule),
      cut_(cut),
      model_(model),
      type_(type),
      coder_(activations),
      group_(group),
      clock_(clock),
      outbox_(group) {
  STARLING_CHECK(schedule.ranks == group.size() && cut.size() == static_cast<size_t>(schedule.stages()) + 1,
                 "the schedule has {} ranks, the group has {}, and the cut has {} entries", schedule.ranks,
                 group.size(), cut.size());
  if (schedule.chunks > 1 << kChunkBits || schedule.micro_batches > 1 << kMicroBatchBits)
    throw ConfigError("--schedule", fmt::format("a schedule has at most {} chunks and {} micro-batches",
                                                1 << kChunkBits, 1 << kMicroBatchBits));
}

Batch ScheduleExecutor::micro_batch(int index) const {
  const int64_t each = batch_.size() / schedule_.micro_batches;
  return batch_.part(index * each, each);
}

void ScheduleExecutor::begin(const Batch& batch, int64_t step) {
  if (batch.size() == 0 || batch.size() % schedule_.micro_batches != 0) {
    throw ConfigError("--micro-batches",
                      fmt::format("a batch of {} samples cannot be divided into {} micro-batches",
                                  batch.size(), schedule_.micro_batches));
  }
  batch_ = batch;
  step_ = step;
  result_ = {};
  cells_.clear();
}

// Executes the schedule without its backwards. This cannot deadlock, because the remaining actions keep their
// order.
double ScheduleExecutor::evaluate(const Batch& batch, int64_t step) {
  at::NoGradGuard no_grad;
  begin(batch, step);
  for (const Action& action : schedule_.actions[group_.rank()]) {
    const ActionKind kind = action.kind;
    const bool forwards = kind == ActionKind::kForward || kind == ActionKind::kSendActivation ||
                          kind == ActionKind::kRecvActivation;
    if (forwards) execute(action);
  }
  outbox_.flush();
  cells_.clear();
  return result_.loss / schedule_.micro_batches;
}

ScheduleResult ScheduleExecutor::run(const Batch& batch, int64_t step, std::function<void()> after_backward) {
  this->begin(batch, step);
  after_backward_ = std::move(after_backward);
  timeline_.clear();
  const Nanoseconds begin = clock_.now();
  result_.begin_ns = begin.count();
  coder_.begin_step(step);
  for (const Action& action : schedule_.actions[group_.rank()]) {
    const Nanoseconds from = clock_.now();
    execute(action);
    keep_pace(action, from);
    const Nanoseconds to = clock_.now();
    timeline_.push_back({group_.rank(), action, from.count(), to.count()});
    const bool computes = action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward;
    const bool waits = action.kind == ActionKind::kRecvActivation || action.kind == ActionKind::kRecvGradient;
    if (computes) result_.busy_s += to_seconds(to - from);
    if (waits) result_.wait_s += to_seconds(to - from);
  }
  result_.span_s = to_seconds(clock_.now() - begin);
  const Nanoseconds from = clock_.now();
  outbox_.flush();
  result_.wait_s += to_seconds(clock_.now() - from);
  result_.loss /= schedule_.micro_batches;
  coder_.end_step();
  result_.ranged_values = coder_.ranged_values();
  result_.saturated_values = coder_.saturated_values();
  return result_;
}

void ScheduleExecutor::keep_pace(const Action& action, Nanoseconds from) const {
  const double least = action.kind == ActionKind::kForward    ? pace_.forward_s
                       : action.kind == ActionKind::kBackward ? pace_.backward_s
                                                              : 0;
  if (least <= 0) return;
  const auto whole = std::chrono::ceil<Nanoseconds>(std::chrono::duration<double>(least));
  const Nanoseconds left = whole - (clock_.now() - from);
  if (left > Nanoseconds(0)) std::this_thread::sleep_for(left);
}

void ScheduleExecutor::execute(const Action& action) {
  Cell& cell = cell_of(action.micro_batch, action.chunk);
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action, cell);
    case ActionKind::kBackward:
      return backward(action, cell);
    case ActionKind::kSendActivation:
      return send_activation(action, cell);
    case ActionKind::kRecvActivation:
      return recv_activation(action, cell);
    case ActionKind::kSendGradient:
      return send_gradient(action, cell);
    case ActionKind::kRecvGradient:
      return recv_gradient(action, cell);
  }
}

void ScheduleExecutor::forward(const Action& action, Cell& cell) {
  const int stage = stage_of(action);
  const Batch batch = micro_batch(action.micro_batch);
  if (model_.samples) model_.samples->keys = batch.keys;
  if (stage == 0) cell.input = inputs_of(model_, batch, type_, /*channels_last=*/false);
  cell.output = run_blocks(model_.blocks, cut_[stage], cut_[stage + 1], cell.input);
  if (is_last(action)) {
    cell.output = {model_.loss.of(cell.output, batch.targets()).mean()};
    const double value = cell.output[0].item<double>();
    if (!std::isfinite(value) && at::GradMode::is_enabled()) refuse_loss(value);
    result_.loss += value;
  } else if (schedule_.ranks == 1) {
    Cell& next = cell_of(action.micro_batch, action.chunk + 1);
    for (const at::Tensor& t : cell.output)
      next.input.push_back(t.detach().requires_grad_(t.requires_grad()));
  }
}

void ScheduleExecutor::backward(const Action& action, Cell& cell) {
  Tensors roots, gradients;
  for (const at::Tensor& t : cell.output) {
    if (t.requires_grad()) roots.push_back(t);
  }
  gradients = is_last(action) ? Tensors(roots.size()) : std::move(cell.output_gradients);
  STARLING_CHECK(gradients.size() == roots.size(), "{} gradients for {} tensors", gradients.size(),
                 roots.size());
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
  after_backward_();
  cell.output.clear();
  if (schedule_.ranks == 1 && action.chunk > 0) {
    Cell& before = cell_of(action.micro_batch, action.chunk - 1);
    for (const at::Tensor& t : cell.input) {
      if (t.requires_grad())
        before.output_gradients.push_back(t.grad().defined() ? t.grad() : at::zeros_like(t));
    }
  }
  if (schedule_.ranks == 1 || stage_of(action) == 0) cells_.erase({action.micro_batch, action.chunk});
}

void ScheduleExecutor::post(const at::Tensor& tensor, const CutTensor& of, int peer, uint32_t tag) {
  const at::Tensor message = coder_.encode(tensor, of);
  result_.payload_bytes += message.nbytes();
  outbox_.post(message, peer, tag);
}

at::Tensor ScheduleExecutor::receive(at::IntArrayRef sizes, at::ScalarType type, const CutTensor& of,
                                     int peer, uint32_t tag) {
  const at::Tensor message = coder_.empty_message(sizes, type, of);
  recv(group_, message.data_ptr(), message.nbytes(), peer, tag);
  return coder_.decode(message, sizes, type, of);
}

ScheduleExecutor::ShapeKey ScheduleExecutor::shape_key(const Action& action) const {
  const Batch batch = micro_batch(action.micro_batch);
  std::vector<int64_t> words = batch.input.sizes().vec();
  for (const at::Tensor& input : batch.more_inputs) {
    words.push_back(-1);
    words.insert(words.end(), input.sizes().begin(), input.sizes().end());
  }
  words.push_back(at::GradMode::is_enabled() ? 1 : 0);
  return {action.chunk, std::move(words)};
}

void ScheduleExecutor::send_activation(const Action& action, const Cell& cell) {
  const int peer = counterpart_of(schedule_, group_.rank(), action).rank;
  const ShapeKey key = shape_key(action);
  if (told_shapes_.insert(key).second) {
    outbox_.post(encode_shapes(shapes_of(cell.output)), peer, tag_of(Content::kShapes, action.chunk, 0));
  }
  for (size_t i = 0; i < cell.output.size(); ++i)
    post(sendable(cell.output[i]), behind(action, i, false), peer,
         tag_of(Content::kActivation, action.chunk, action.micro_batch));
}

void ScheduleExecutor::recv_activation(const Action& action, Cell& cell) {
  const Counterpart from = counterpart_of(schedule_, group_.rank(), action);
  const ShapeKey key = shape_key(action);
  auto known = received_shapes_.find(key);
  if (known == received_shapes_.end()) {
    at::Tensor words = at::empty({kShapeWords}, at::kLong);
    recv(group_, words.data_ptr(), words.nbytes(), from.rank, tag_of(Content::kShapes, from.action.chunk, 0));
    known = received_shapes_.emplace(key, decode_shapes(words)).first;
  }
  for (const MessageShape& shape : known->second) {
    const at::Tensor t = receive(shape.sizes, shape.type, before(action, cell.input.size(), false), from.rank,
                                 tag_of(Content::kActivation, from.action.chunk, action.micro_batch));
    cell.input.push_back(t.requires_grad_(shape.requires_grad));
  }
}

void ScheduleExecutor::send_gradient(const Action& action, Cell& cell) {
  const int peer = counterpart_of(schedule_, group_.rank(), action).rank;
  for (size_t i = 0; i < cell.input.size(); ++i) {
    const at::Tensor& t = cell.input[i];
    if (!t.requires_grad()) continue;
    const at::Tensor gradient =
        t.grad().defined() ? sendable(t.grad()) : at::zeros(t.sizes(), t.scalar_type());
    post(gradient, before(action, i, true), peer,
         tag_of(Content::kGradient, action.chunk, action.micro_batch));
  }
  cells_.erase({action.micro_batch, action.chunk});
}

void ScheduleExecutor::recv_gradient(const Action& action, Cell& cell) {
  const Counterpart from = counterpart_of(schedule_, group_.rank(), action);
  for (size_t i = 0; i < cell.output.size(); ++i) {
    const at::Tensor& t = cell.output[i];
    if (!t.requires_grad()) continue;
    cell.output_gradients.push_back(
        receive(t.sizes(), t.scalar_type(), behind(action, i, true), from.rank,
                tag_of(Content::kGradient, from.action.chunk, action.micro_batch)));
  }
}

void ScheduleExecutor::refuse_loss(double loss) const {
  const int self = group_.job_rank(group_.rank());
  throw Error(ErrorCode::kNumeric,
              fmt::format("rank {} (last stage): the loss is {} at step {}; try a lower --lr, warm-up (--set "
                          "schedule.warmup_steps=…) or --set optimizer.clip_norm=1",
                          self, loss, step_),
              self);
}

}  // namespace starling
