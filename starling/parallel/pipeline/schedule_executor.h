// ScheduleExecutor executes one rank's column of a schedule. It runs forward and backward of the rank's
// stages over the micro-batches of a step and exchanges activations and their gradients with the neighbors.
//
// The autograd graph is cut between stages. A received activation is a leaf, whose gradient is sent back
// after its backward. Gradients of parameters accumulate over the micro-batches in parameter.grad().
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/source.h"
#include "starling/nn/blocks.h"
#include "starling/parallel/pipeline/activation_coder.h"
#include "starling/parallel/pipeline/activation_outbox.h"
#include "starling/parallel/pipeline/tensor_shapes.h"
#include "starling/parallel/pipeline/traced.h"
#include "starling/plan/pipeline_schedule.h"

namespace starling {

// The result of one rank's part of a step.
struct ScheduleResult {
  double loss = 0;    // mean over the micro-batches; only on the rank of the last stage
  double busy_s = 0;  // time in forward and backward
  double wait_s = 0;  // time spent in receiving and in waiting for the last sends
  double span_s = 0;  // time from the start of the first action to the end of the last one
  int64_t begin_ns = 0;
  uint64_t payload_bytes = 0;  // activations and gradients sent, as encoded
  // The numbers of values that were sent with a calibrated range, and of those beyond their range.
  uint64_t ranged_values = 0, saturated_values = 0;
};

// The least duration of each pass of a rank's stages, in seconds, which emulates a slower device. 0: a pass
// takes as long as it computes.
struct ActionPace {
  double forward_s = 0;
  double backward_s = 0;
};

// Executes a schedule on one rank. Not thread-safe.
class ScheduleExecutor {
 public:
  // schedule: checked, with as many ranks as the group has. cut: where each stage begins in model.blocks,
  // followed by the number of blocks. activations: their encoding (pipeline/activation_coder.h). The model's
  // parameters must have the type `type`. All references must outlive this object.
  ScheduleExecutor(const Schedule& schedule, const std::vector<size_t>& cut, const Model& model,
                   at::ScalarType type, const ActivationSettings& activations, Group& group,
                   const Clock& clock);

  // Runs the schedule on the batch of a step, which is equal on every rank. The first stage reads the batch's
  // inputs, and the last stage reads its targets. The number of samples must be divisible by the number of
  // micro-batches.
  // after_backward is called after each backward of a stage; it may take the gradients away. Errors:
  // ConfigError (--micro-batches) for an indivisible batch; Error(kNumeric) for a loss that is not finite;
  // CommError.
  ScheduleResult run(const Batch& batch, int64_t step, std::function<void()> after_backward);
  // Runs only the forwards of the schedule, without gradients. Returns the mean loss, only on the rank of the
  // last stage. Collective.
  double evaluate(const Batch& batch, int64_t step);

  // Passes that end earlier than `pace` says are followed by a wait, which counts as computing.
  void set_pace(const ActionPace& pace) { pace_ = pace; }

  // The actions of the last run, in the clock's time.
  const std::vector<MeasuredAction>& timeline() const { return timeline_; }

  // The calibrated ranges of the cuts before and behind this rank's stages, or null if there are none.
  CutRanges* ranges() { return coder_.ranges(); }

 private:
  // A micro-batch in a stage, between its forward and its backward.
  struct Cell {
    Tensors input;             // leaves
    Tensors output;            // for the last stage: the loss
    Tensors output_gradients;  // of the outputs that require a gradient
  };

  void begin(const Batch& batch, int64_t step);
  void execute(const Action& action);
  void keep_pace(const Action& action, Nanoseconds from) const;
  void forward(const Action& action, Cell& cell);
  void backward(const Action& action, Cell& cell);
  void send_activation(const Action& action, const Cell& cell);
  void recv_activation(const Action& action, Cell& cell);
  void send_gradient(const Action& action, Cell& cell);
  void recv_gradient(const Action& action, Cell& cell);
  void post(const at::Tensor& tensor, const CutTensor& of, int peer, uint32_t tag);
  at::Tensor receive(at::IntArrayRef sizes, at::ScalarType type, const CutTensor& of, int peer, uint32_t tag);
  // The tensors that cross the cut before the action's stage, or the cut behind it.
  CutTensor before(const Action& action, size_t index, bool gradient) const {
    return {cut_[stage_of(action)], gradient, index};
  }
  CutTensor behind(const Action& action, size_t index, bool gradient) const {
    return {cut_[stage_of(action) + 1], gradient, index};
  }
  int stage_of(const Action& action) const { return schedule_.stage_of(group_.rank(), action.chunk); }
  bool is_last(const Action& action) const { return stage_of(action) == schedule_.stages() - 1; }
  Cell& cell_of(int micro_batch, int chunk) { return cells_[{micro_batch, chunk}]; }
  Batch micro_batch(int index) const;
  using ShapeKey = std::pair<int, std::vector<int64_t>>;
  ShapeKey shape_key(const Action& action) const;
  [[noreturn]] void refuse_loss(double loss) const;

  const Schedule& schedule_;
  const std::vector<size_t>& cut_;
  const Model& model_;
  const at::ScalarType type_;
  ActivationCoder coder_;
  Group& group_;
  const Clock& clock_;
  ActionPace pace_;
  Outbox outbox_;
  // The shapes that this rank's stages have received and sent. The key is the chunk, the sizes of the
  // micro-batch and whether gradients are needed. All ranks see the same batches, so sender and receiver
  // agree on when shapes are sent.
  std::map<ShapeKey, std::vector<MessageShape>> received_shapes_;
  std::set<ShapeKey> told_shapes_;

  // The fields from here on belong to the running step.
  Batch batch_;
  int64_t step_ = 0;
  std::function<void()> after_backward_;
  std::map<std::pair<int, int>, Cell> cells_;  // by micro-batch and chunk
  ScheduleResult result_;
  std::vector<MeasuredAction> timeline_;
};

}  // namespace starling
