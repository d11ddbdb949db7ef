// ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054): synchronous SGD whose replicas divide among N ranks what all-reduce keeps
// N times. Every rank owns 1/N of each unit (zero_unit.h):
//
//   stage 1 (--shard optimizer)   the states of the optimizer: gradients are reduce-scattered, each rank updates its share,
//                                 and the parameters are gathered.
//   stage 2 (--shard gradients)   the gradients too: a bucket exists only while backward fills it, is reduce-scattered as
//                                 soon as it is full, and freed.
//   stage 3 (--shard parameters)  the parameters too: a block's are gathered before its forward and before its backward, and
//                                 freed after each. A parameter that several blocks share stays from the first to the last.
//
// The update is that of one process with the whole batch. Bytes and traffic: plan/memory.h. Collectives run on the thread of
// backward: they do not overlap with computing.
#pragma once

#include <memory>
#include <vector>

#include "starling/parallel/replica_strategy.h"
#include "starling/parallel/tensor_memory.h"
#include "starling/parallel/zero_unit.h"

namespace starling {

struct ZeroOptions {
  int stage = 1;  // 1, 2, 3
  FlatReplicaOptions replica;
  size_t bucket_bytes = size_t{8} << 20;  // stages 1, 2: of gradients
  TensorMemory* memory = nullptr;         // counts the peak of steps; null: not counted
};

// What the allocator counts. Bytes.
struct ZeroPeak {
  int64_t before = 0;  // live without this strategy
  int64_t held = 0;    // by it, before its first step
  int64_t peak = 0;    // of all steps, without `before`
  int64_t forward_begin = 0;
  int64_t activations = 0;
  bool begun = false;
};

class Zero final : public Strategy {
 public:
  // Collective. Parameters and buffers are those of rank 0's fresh model. Every rank holds a whole model while this runs.
  // Errors: ConfigError (train.shard) for stage 3 of a model without blocks.
  Zero(const ModelFactory& factory, UpdateRule rule, const ZeroOptions& options, Group& group,
       const Clock& clock);

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  // Stage 3: the model is whole on every rank until the next step. Running statistics become their mean.
  void consensus() override;
  // Collective. Complete on rank 0, empty elsewhere; under global names, whatever the ranks and the stage.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  Replica& evaluated() { return replica_; }

  // stage, parameters (Ψ), padding (elements, so that N divides the units);
  // parameter_bytes, gradient_bytes, optimizer_bytes, held_bytes: of this rank between steps, counted from the allocations,
  // padding with them; formula_bytes; temporary_bytes: the most of a step that was gathered or on its way besides;
  // traffic_elements: received by this rank in the last step, by Group::traffic(); traffic_formula.
  // With options.memory, by the allocator: peak_bytes, the most that this rank's tensors had in a step, the batch and what was
  // there before apart; activation_bytes, of that what forward left behind for backward; peak_formula = formula_bytes +
  // temporary_bytes + activation_bytes.
  Fingerprint fingerprint() const;

 private:
  void share_initial_values();
  double run_whole(const Batch& batch);
  double run_by_blocks(const Batch& batch);
  void backward_block(size_t block, const Tensors& inputs, const Tensors& outputs, const Tensors& gradients);
  void gather_for(size_t block);
  void reduce_filled();
  [[noreturn]] void refuse(double loss) const;
  // Where options.memory is given: at the begin of a step, around forward, at the end of the step.
  void step_begins();
  void forward_begins();
  void forward_ends();
  void step_ends();

  ZeroOptions options_;
  UpdateRule rule_;
  Group& group_;
  const Clock& clock_;
  ZeroPeak peak_;  // before the replica: it counts that, too
  Replica replica_;
  ZeroAccount account_;
  std::vector<std::unique_ptr<ZeroUnit>> units_;
  size_t reduced_ = 0;  // stages 1, 2: units of this step
  Step step_;
  double own_loss_ = 0, forward_backward_s_ = 0, traffic_elements_ = 0;
};

}  // namespace starling
