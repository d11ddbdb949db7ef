// TableRun: executes a rank's column of a schedule's table: forward and backward of the rank's stages over the
// micro-batches of a step, activations and their gradients to and from the neighbours.
//
// Activations are cut from the graph between stages: what a stage receives is a leaf, whose gradient goes back once its
// backward has run. Gradients of parameters add up over the micro-batches in parameter.grad().
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
#include "starling/parallel/pipeline/outbox.h"
#include "starling/parallel/pipeline/tensor_shapes.h"
#include "starling/plan/pipeline_schedule.h"

namespace starling {

struct MeasuredAction {
  int rank = 0;
  Action action;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// What one rank's part of a step came to.
struct TableResult {
  double loss = 0;    // mean over the micro-batches; only on the rank of the last stage
  double busy_s = 0;  // in forwards and backwards
  double wait_s = 0;  // in receiving, and for the last messages to leave
  double span_s = 0;  // of all
  int64_t begin_ns = 0;
  uint64_t payload_bytes = 0;  // activations and gradients sent, as they travelled
};

class TableRun {
 public:
  // schedule: checked, with as many ranks as the group. cut: where each stage begins in model.blocks, and at last their
  // number. All outlive this, the model's parameters are of type `type`. activations: how they travel (activation_coder.h).
  TableRun(const Schedule& schedule, const std::vector<size_t>& cut, const Model& model, at::ScalarType type,
           const std::string& activations, Group& group, const Clock& clock);

  // batch: the whole batch of the step, on every rank; the first stage reads its input, the last its target. Its size must
  // divide by the micro-batches. Errors: ConfigError (--micro-batches) if not; Error(kNumeric) for a loss that is not
  // finite; CommError.
  // after_backward: called after each backward of a stage; it may take the gradients away.
  TableResult run(const Batch& batch, int64_t step, std::function<void()> after_backward);
  // The table's forwards alone, without gradients: the mean loss, only on the rank of the last stage. Collective.
  double evaluate(const Batch& batch, int64_t step);

  // Of the last run, in the clock's time.
  const std::vector<MeasuredAction>& timeline() const { return timeline_; }

 private:
  // A micro-batch in a stage, between its forward and its backward.
  struct Cell {
    Tensors input;             // leaves
    Tensors output;            // of the last stage: the loss
    Tensors output_gradients;  // of those outputs that require one
  };

  void begin(const Batch& batch, int64_t step);
  void execute(const Action& action);
  void forward(const Action& action, Cell& cell);
  void backward(const Action& action, Cell& cell);
  void send_activation(const Action& action, const Cell& cell);
  void recv_activation(const Action& action, Cell& cell);
  void send_gradient(const Action& action, Cell& cell);
  void recv_gradient(const Action& action, Cell& cell);
  void post(const at::Tensor& tensor, int peer, uint32_t tag);
  at::Tensor receive(at::IntArrayRef sizes, at::ScalarType type, int peer, uint32_t tag);
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
  const ActivationCoder coder_;
  Group& group_;
  const Clock& clock_;
  Outbox outbox_;
  // The shapes that stages have been told, by chunk, the sizes of the micro-batch and whether gradients are asked for. All
  // ranks see the same batches, so that sender and receiver agree on when the shapes are told.
  std::map<ShapeKey, std::vector<MessageShape>> received_shapes_;
  std::set<ShapeKey> told_shapes_;

  // Of the step that runs.
  Batch batch_;
  int64_t step_ = 0;
  std::function<void()> after_backward_;
  std::map<std::pair<int, int>, Cell> cells_;  // by micro-batch and chunk
  TableResult result_;
  std::vector<MeasuredAction> timeline_;
};

}  // namespace starling
