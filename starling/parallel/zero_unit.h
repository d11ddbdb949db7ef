// ZeroUnit: parameters that ZeRO gathers, and whose gradients it reduces, together: a bucket of them (stages 1, 2), or what a
// block uses (stage 3). They lie in one flat range, padded so that each of N ranks owns one equal part, its share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/blocks.h"
#include "starling/nn/gradient_slot.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/flat_layout.h"
#include "starling/parallel/model_parts.h"
#include "starling/parallel/replica.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Which parameters make a unit, by their index in the replica; all of one type. With stage 3 they are needed by the blocks
// from first_block to last_block: one, or several where a parameter is shared.
struct UnitPlan {
  std::vector<size_t> parameters;
  size_t first_block = 0;
  size_t last_block = 0;
};

// Buckets of at least `bucket_bytes`, in the order in which backward fills them as a rule: the last parameters first.
std::vector<UnitPlan> plan_buckets(const Replica& replica, size_t bucket_bytes);
// A unit a block and type, and one for each set of blocks that share parameters.
std::vector<UnitPlan> plan_blocks(const Replica& replica, const std::vector<BlockTensors>& blocks);

// What units count together.
struct ZeroAccount {
  double received_elements = 0;  // by Group::traffic()
  double communication_s = 0;
  size_t temporary_bytes = 0;  // gathered parameters, gradients on their way
  size_t peak_temporary_bytes = 0;
  void take(size_t bytes);
  void give_back(size_t bytes) { temporary_bytes -= bytes; }
};

struct ZeroSurroundings {
  Group& group;
  const Clock& clock;
  ZeroAccount& account;
};

class ZeroUnit {
 public:
  // Takes over the parameters' values and points the module's tensors at its flat range. on_filled: a gradient is complete.
  ZeroUnit(UnitPlan plan, Replica& replica, int stage, const UpdateRule& rule, at::ScalarType master,
           const ZeroSurroundings& around, const std::function<void()>& on_filled);
  ZeroUnit(const ZeroUnit&) = delete;

  const UnitPlan& plan() const { return plan_; }

  // A pass over the batch begins: no gradient is there.
  void begin_pass();
  // Parameters whose gradient is not complete.
  size_t missing() const;
  // Those that the loss does not depend on get a zero gradient.
  void fill_unused();
  // Collective: the sum of all ranks' gradients, of which each keeps its share; with stages 2, 3 the rest is freed.
  void reduce();

  // Stage 3. Collective: makes the parameters whole, if they are not; release() frees them.
  void gather();
  void release();

  // Of the own share of the gradient, without what another part of the model counts. fp64.
  double sum_of_squares(const Replica& replica, const ModelParts& parts) const;
  // The update rule on the own share.
  void apply(double scale, const Step& step);
  // Collective, after apply(): with stages 1, 2 every rank gets the others' shares.
  void publish();

  // Collective. On rank 0: each parameter, and its states under "<state>/<name>", copied.
  void collect(const Replica& replica, StrategyState& state);
  // Errors: Error(kCheckpoint) naming the tensor that does not fit.
  void load(const Replica& replica, const StrategyState& state);

  // Bytes of what this rank holds between steps.
  size_t parameter_bytes() const;
  size_t gradient_bytes() const;
  size_t optimizer_bytes() const;
  // Ψ of this unit, and the elements of its range beyond.
  size_t elements() const { return elements_; }
  size_t padding() const { return static_cast<size_t>(size_) - elements_; }
  bool is_mixed() const { return type_ != master_type_ && type_ == at::kBFloat16; }

 private:
  at::Tensor view(const at::Tensor& flat, const at::Tensor& like, size_t position) const;
  void open_gradients();
  template <typename F>
  void exchange(F collective);
  template <typename T, typename G>
  void apply_typed(double scale, const Step& step);
  void unflatten(const Replica& replica, const at::Tensor& share, const std::string& prefix,
                 std::map<std::string, at::Tensor>& out);
  at::Tensor flatten(const Replica& replica, const std::map<std::string, at::Tensor>& in,
                     const std::string& prefix, at::ScalarType type) const;

  UnitPlan plan_;
  int stage_;
  const UpdateRule& rule_;
  ZeroSurroundings around_;
  at::ScalarType type_ = at::kFloat;         // in forward and backward
  at::ScalarType master_type_ = at::kFloat;  // in the update
  FlatLayout layout_;                        // by position in plan_.parameters
  int64_t size_ = 0, share_ = 0, begin_ = 0;
  size_t elements_ = 0;
  std::vector<GradientSlot::Installed> slots_;
  std::vector<at::Tensor> likes_;  // of each parameter: sizes, strides, type; no memory
  at::Tensor whole_;               // parameters; with stage 3 without memory while released
  at::Tensor own_;                 // the share of them: a part of whole_, or (stage 3) memory of its own
  at::Tensor master_;              // own_, or its fp32 original
  std::vector<at::Tensor> states_;
  at::Tensor gradient_;      // whole: always (stage 1), or while backward fills it
  at::Tensor own_gradient_;  // a part of it (stage 1), or memory of its own
  bool gathered_ = true;
};

}  // namespace starling
