// ZeroUnit holds parameters that ZeRO gathers together and whose gradients it reduces together. A unit is a
// bucket of parameters (stages 1 and 2) or the parameters of a block (stage 3). Its parameters lie in one
// flat range. Padding makes the range divisible into N equal shares, of which each rank owns one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/codec/coded_reduce_scatter.h"
#include "starling/comm/group.h"
#include "starling/nn/blocks.h"
#include "starling/nn/layers/gradient_slot.h"
#include "starling/optim/layer_rule.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/replica/flat_layout.h"
#include "starling/parallel/replica/replica.h"
#include "starling/parallel/strategy.h"
#include "starling/parallel/zero/gradient_share.h"

namespace starling {

// The parameters of a unit, by their index in the replica. All have one type. With stage 3, the blocks
// first_block to last_block need them: several blocks if they share a parameter.
struct UnitPlan {
  std::vector<size_t> parameters;
  size_t first_block = 0;
  size_t last_block = 0;
};

// Plans buckets of at least `bucket_bytes`, the last parameters first, because backward usually fills
// gradients in that order.
std::vector<UnitPlan> plan_buckets(const Replica& replica, size_t bucket_bytes);
// Plans one unit per block and type, and one for each set of blocks that share parameters.
std::vector<UnitPlan> plan_blocks(const Replica& replica, const std::vector<BlockTensors>& blocks);

// The counters that all units of a rank share.
struct ZeroAccount {
  double received_elements = 0;  // by Group::traffic()
  double gradients_s = 0;        // exposed communication of gradients in this step
  double parameters_s = 0;       // exposed communication of parameters in this step
  size_t temporary_bytes = 0;    // gathered parameters and unreduced gradients
  size_t peak_temporary_bytes = 0;
  double communication_s() const { return gradients_s + parameters_s; }
  // Adds temporary bytes and updates their peak.
  void take(size_t bytes);
  // Subtracts temporary bytes.
  void give_back(size_t bytes) { temporary_bytes -= bytes; }
};

// The objects that a unit uses. They must outlive the unit.
struct ZeroEnvironment {
  Group& group;
  const Clock& clock;
  ZeroAccount& account;
};

// A flat range of parameters with this rank's share of gradients and optimizer states. Not thread-safe.
class ZeroUnit {
 public:
  // Copies the parameters into the unit's flat range and makes the module's tensors views of this range.
  // on_filled is called when a gradient is complete.
  ZeroUnit(UnitPlan plan, Replica& replica, int stage, const UpdateRule& rule, at::ScalarType master,
           const ZeroEnvironment& environment, const std::function<void()>& on_filled);
  ZeroUnit(const ZeroUnit&) = delete;

  // Stages 1 and 2: sends the gradients through a codec from now on. number: of the unit, equal on all ranks.
  // Collective. Errors: those of CodedReduceScatter.
  void encode_gradients(const CodecSpec& codec, uint64_t number);
  // The coded exchange of the gradients, or null. The unit owns it.
  CodedReduceScatter* coded() const { return coded_.get(); }

  // The plan that the unit was made from.
  const UnitPlan& plan() const { return plan_; }

  // Starts a pass over the batch: no gradient is complete.
  void begin_pass();
  // Returns the number of parameters whose gradient is not complete.
  size_t missing() const;
  // Sets whether the next backward is followed by others whose gradients are added before reduce().
  void expect_more(bool more);
  // Multiplies the gradients of this pass so far: those of backward (stage 1), or this rank's share of those
  // that are reduced.
  void scale_gradients(double factor);
  // Gives a zero gradient to each parameter that the loss does not depend on.
  void fill_unused();
  // Sums the gradients of all ranks; each rank keeps its share, or adds it to that of the last reduce(). With
  // a codec the share is that of the mean of the decoded gradients, and not of their sum. With stages 2 and
  // 3, frees the rest. step: of the training. Collective.
  void reduce(bool add, int64_t step);

  // Stage 3: makes the parameters whole if they are not. Collective.
  void gather();
  // Stage 3: frees the gathered parameters.
  void release();

  // Sets each element of this rank's share of the gradient that is larger than `limit` in magnitude to
  // ±limit. Call it after the last reduce() of a step.
  void clip_elements(double limit);
  // Returns this rank's share of the gradient. It refers to this unit and to `replica`.
  GradientShare gradient_share(const Replica& replica) const;
  // Applies the update rule to this rank's share. Returns whether the share of the gradient is finite.
  bool apply(double scale, const Step& step);
  // Adds the squares of this rank's share to those of its parameters, by their index in the replica.
  void add_squares(const LayerRule& rule, double scale, const Step& step,
                   std::vector<LayerSquares>& squares) const;
  // Like apply(), with a rule for which `squares` holds the squares of whole parameters.
  bool apply(const LayerRule& rule, const std::vector<LayerSquares>& squares, double scale, const Step& step);
  // With stages 1 and 2, gathers the updated shares of all ranks on every rank. Call it after apply().
  // Collective.
  void publish();

  // Makes the module's tensors show the averaged weights, which are gathered from all ranks. With stage 3,
  // frees the gathered parameters. Collective.
  void show_average(Replica& replica);
  // Makes the module's tensors show the parameters again and frees the gathered averages.
  void hide_average(Replica& replica);

  // Copies each parameter and its states ("<state>/<name>") into `state` on rank 0. Collective.
  void collect(const Replica& replica, StrategyState& state);
  // Loads this rank's share of a state. Errors: Error(kCheckpoint) naming the tensor that does not fit.
  void load(const Replica& replica, const StrategyState& state);

  // The bytes that each rank sends for the gradients of a step without a codec: (N − 1)/N of the unit.
  double plain_bytes() const;
  // Bytes of parameters that this rank holds between steps.
  size_t parameter_bytes() const;
  // Bytes of gradients that this rank holds between steps.
  size_t gradient_bytes() const;
  // Bytes of optimizer states and fp32 master parameters that this rank holds between steps.
  size_t optimizer_bytes() const;
  // The number of parameters of this unit (its Ψ).
  size_t elements() const { return elements_; }
  // The number of elements of the flat range that are not parameters.
  size_t padding() const { return static_cast<size_t>(size_) - elements_; }
  // Whether the unit is bfloat16 with fp32 master parameters.
  bool is_mixed() const { return type_ != master_type_ && type_ == at::kBFloat16; }

 private:
  at::Tensor view(const at::Tensor& flat, const at::Tensor& like, size_t position) const;
  void open_gradients();
  template <typename F>
  void exchange(double& seconds, F collective);
  void reduce_into(const at::Tensor& share, int64_t step);
  void reduce_coded(const at::Tensor& share, int64_t step);
  template <typename F>
  auto with_update(double scale, const F& call) const;
  void unflatten(const Replica& replica, const at::Tensor& share, const std::string& prefix,
                 std::map<std::string, at::Tensor>& out);
  at::Tensor flatten(const Replica& replica, const std::map<std::string, at::Tensor>& in,
                     const std::string& prefix, at::ScalarType type) const;

  UnitPlan plan_;
  int stage_;
  const UpdateRule& rule_;
  ZeroEnvironment environment_;
  at::ScalarType type_ = at::kFloat;         // of forward and backward
  at::ScalarType master_type_ = at::kFloat;  // of the update
  FlatLayout layout_;                        // by position in plan_.parameters
  int64_t size_ = 0, share_ = 0, begin_ = 0;
  size_t elements_ = 0;
  std::vector<LayerPart> layer_parts_;  // of this rank's share
  std::vector<GradientSlot::Installed> slots_;
  std::vector<at::Tensor> likes_;   // sizes, strides and type of each parameter, without memory
  std::vector<at::Tensor> places_;  // views of whole_, by position
  at::Tensor whole_;                // all parameters; with stage 3 it has no memory while released
  at::Tensor shown_;                // all averaged weights, while the module shows them
  at::Tensor own_;                  // this rank's share: a view of whole_, or (stage 3) its own memory
  at::Tensor master_;               // own_, or its fp32 original
  std::vector<at::Tensor> states_;
  at::Tensor gradient_;      // the whole gradient: always (stage 1), or while backward fills it
  at::Tensor own_gradient_;  // this rank's share: a view of gradient_ (stage 1), or its own memory
  bool gathered_ = true;
  std::unique_ptr<CodedReduceScatter> coded_;  // of the gradients; null without a codec
};

}  // namespace starling
