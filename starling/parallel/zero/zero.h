// ZeRO: synchronous SGD that shards over N ranks what all-reduce keeps N times (Rajbhandari et al. 2020,
// arXiv 1910.02054). Each rank owns 1/N of each unit (zero/zero_unit.h). There are three stages:
//
//   stage 1 (--shard optimizer)   The optimizer states are sharded. Gradients are reduce-scattered, each rank
//                                 updates its share, and the parameters are gathered.
//   stage 2 (--shard gradients)   The gradients are sharded, too. A bucket exists only while backward fills
//                                 it. It is reduce-scattered when it is full, and freed.
//   stage 3 (--shard parameters)  The parameters are sharded, too. A block's parameters are gathered before
//                                 its forward and before its backward, and freed after each. A parameter that
//                                 several blocks share stays from the first of these blocks to the last.
//
// With a codec, stages 1 and 2 send the gradients to their owners as messages (codec/coded_reduce_scatter.h).
// An owner updates its share by the mean of the decoded gradients. The parameters are gathered as they are,
// as in ZeRO++ (Wang et al. 2023, arXiv 2306.10209) with qgZ alone.
//
// Without a codec, the update equals that of one process with the whole batch. plan/memory.h has the formulas
// for bytes and traffic. Collectives run on the thread of backward, so they do not overlap with computation.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "starling/parallel/replica/replica_strategy.h"
#include "starling/parallel/replica/tensor_memory.h"
#include "starling/parallel/zero/zero_unit.h"

namespace starling {

// Settings of Zero.
struct ZeroOptions {
  int stage = 1;  // 1, 2 or 3
  FlatReplicaOptions replica;
  size_t bucket_bytes = size_t{8} << 20;  // of gradients; stages 1 and 2 only
  TensorMemory* memory = nullptr;         // counts the peak memory of steps; null: no counting
  std::optional<CodecSpec> codec = {};    // of the gradients; stages 1 and 2 only, in fp32 or bf16
};

// What the allocator counts, in bytes.
struct ZeroPeak {
  int64_t before = 0;         // live bytes that are not this strategy's
  int64_t held = 0;           // bytes of this strategy before its first step
  int64_t peak = 0;           // the largest number of live bytes in all steps, without `before`
  int64_t forward_begin = 0;  // live bytes before forward, without those that units hold temporarily
  int64_t activations = 0;    // the largest number of bytes that a forward pass has left for backward
  bool begun = false;         // whether the first step has begun
};

// The strategy of train.shard. Not thread-safe.
class Zero final : public Strategy {
 public:
  // Collective. Parameters and buffers are those of rank 0's fresh model. Each rank holds a whole model
  // during construction. The group and the clock must outlive this object. Errors: ConfigError (train.shard)
  // for stage 3 of a model without blocks.
  Zero(const ModelFactory& factory, UpdateRule rule, const ZeroOptions& options, Group& group,
       const Clock& clock);

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  // With stage 3, makes the model whole on every rank until the next step. Running statistics become their
  // mean over the ranks.
  void consensus() override;
  // Each rank has the averages of its shares. They are gathered into memory of their own, which is freed
  // afterwards. With stage 3, the whole parameters are freed meanwhile.
  void show_average() override;
  // Collective. Returns whole tensors under global names on rank 0 and an empty state on all other ranks. The
  // state does not depend on the number of ranks or the stage. With a codec that keeps something, such as
  // error feedback, the state also has "values@<rank>/<name>" for each rank. It then fits the number of ranks
  // and the buckets of this run only.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  Replica& evaluated() override { return replica_; }

  // Returns stage, parameters (Ψ) and padding (the elements that make each unit divisible by N), and the
  // values below. parameter_bytes, gradient_bytes, optimizer_bytes and held_bytes (their sum) are what this
  // rank holds between steps, counted from the allocations with padding. formula_bytes is held_bytes by the
  // formula. temporary_bytes is the largest amount of gathered parameters and unreduced gradients in a step.
  // traffic_elements is what this rank received in the last step, by Group::traffic(); traffic_formula is its
  // formula. With options.memory, the allocator's counts follow. peak_bytes is the largest amount that this
  // rank's tensors held in a step, without the batch and without what was live before. activation_bytes is
  // the part that forward left for backward. peak_formula is formula_bytes + temporary_bytes +
  // activation_bytes. With a codec, traffic_formula has its messages by CodedReduceScatter::formula(), which
  // is a bound if their lengths vary. The statistics of tell_messages() are those of the gradients of a step.
  // residual_norm is the norm of this rank's error feedback, and codec_bytes is what the codec keeps between
  // steps, in addition to held_bytes. Collective with a codec.
  StrategyStats strategy_stats() override;

 private:
  void share_initial_values();
  void begin_backward(size_t index, size_t parts);
  void backward_whole(const at::Tensor& loss, bool last);
  BatchLoss forward_by_blocks(const Batch& batch);
  void backward_by_blocks(const at::Tensor& loss);
  void backward_block(size_t block, const Tensors& inputs, const Tensors& outputs, const Tensors& gradients);
  void gather_for(size_t block);
  void reduce_filled();
  double gradient_scale() const;
  at::Tensor codec_state() const;
  void load_codec_state(const StrategyState& state);
  void tell_codec(StrategyStats& stats) const;
  [[noreturn]] void refuse(double loss) const;
  [[noreturn]] void refuse_gradient_of(const ZeroUnit& unit) const;
  std::vector<LayerSquares> squares_of_layers(double scale);
  // These functions update peak_ if options.memory is given: at the start of a step, around forward, and at
  // the end of the step.
  void step_begins();
  void forward_begins();
  void forward_ends();
  void step_ends();

  ZeroOptions options_;
  UpdateRule rule_;
  std::optional<LayerRule> layers_;  // set if the update of an element depends on its tensor
  Group& group_;
  const Clock& clock_;
  ZeroPeak peak_;  // declared before replica_, which it also counts
  Replica replica_;
  ZeroAccount account_;
  std::vector<std::unique_ptr<ZeroUnit>> units_;
  size_t reduced_ = 0;                     // units reduced in this part of the step; stages 1 and 2 only
  bool adds_ = false;                      // whether a reduced gradient is added to that of earlier parts
  std::vector<Tensors> inputs_, outputs_;  // stage 3: of each block, between forward and backward
  Step step_;
  double own_loss_ = 0, forward_backward_s_ = 0, traffic_elements_ = 0;
  double weighing_s_ = 0;  // the ranks added the weights of a weighted loss
};

struct ExchangeParts;

// Makes the strategy of train.shard. Collective.
std::unique_ptr<Strategy> make_zero(const ExchangeParts& parts);

}  // namespace starling
