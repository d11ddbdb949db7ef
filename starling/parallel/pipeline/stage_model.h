// StageModel presents the stages of one pipeline rank as a Model of its own. The part's module has the
// parameters and buffers of the rank's stages, under their names in the whole model. forward() and loss() of
// a batch execute the schedule (pipeline/schedule_executor.h) together with all other ranks of the pipeline.
// backward() from that loss gives each parameter its gradient
//
//   g = 1/m Σ_i ∇ loss(micro-batch i)
//
// Any strategy that trains a Model can therefore train a stage, and every exchange works on the ranks of a
// pipeline as on whole models. If gradients are disabled, only the forwards of the schedule run.
//
// Blocks of several ranks may use a parameter (tied embeddings). Each of these ranks then has the parameter
// in its part. The gradients of the copies are summed in the order of the ranks, so that equal updates keep
// the copies bit-identical.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/blocks.h"
#include "starling/parallel/pipeline/schedule_executor.h"
#include "starling/parallel/replica/model_parts.h"
#include "starling/parallel/replica/replica.h"
#include "starling/plan/pipeline_schedule.h"

namespace starling {

// Settings of StageModel.
struct StageModelOptions {
  Schedule schedule;  // for as many ranks as the group has; the constructor checks it
  // Type of parameters and arithmetic: float, double or bfloat16. With bfloat16, gradients are summed in
  // float, and replica/replica.h says which tensors stay float.
  at::ScalarType type = at::kFloat;
  uint64_t seed = 0;
  // Where each stage begins in the model's blocks, followed by the number of blocks. Empty: the cut balances
  // the measured times of the blocks if there is a sample, and their parameters otherwise. The cut changes
  // results only if activations.word is not "none" or if the exchange has a codec.
  std::vector<size_t> cut;
  Batch sample;  // a micro-batch for measuring on rank 0, whose cut all ranks take
  // The encoding of activations and their gradients between stages (pipeline/activation_coder.h).
  ActivationSettings activations;
  ActionPace pace = {};  // of this rank
};

// What each rank of a pipeline tells all other ranks of a step. It has only doubles.
struct StageNotice {
  double loss = 0;  // on the rank of the last stage
  double wishes_stop = 0, stops = 0;
  double busy_s = 0, span_s = 0, payload_bytes = 0;
  double ranged_values = 0, saturated_values = 0;  // as in ScheduleResult
  double exceeds_limit = 0;                        // as CutRanges::exceeds_limit()
  double forward_s = 0, backward_s = 0;  // means of one pass, over the rank's chunks and micro-batches
};

// The part of a model that one pipeline rank trains. Not thread-safe.
class StageModel {
 public:
  // Collective over `stages`. Parameters are those of rank 0's fresh model. `stages` and the clock must
  // outlive this object. Errors: ConfigError for a schedule that check_schedule refuses or that has another
  // number of ranks. ConfigError also for more stages than blocks, an invalid cut, a model without blocks, or
  // a weighted loss.
  StageModel(const ModelFactory& factory, const StageModelOptions& options, Group& stages,
             const Clock& clock);
  ~StageModel();

  // The part. Do not use it after this object is destroyed. Its parameters are those that are trained, even
  // if their memory is moved.
  const Model& part() const { return part_; }
  // Describes the part to the strategy that trains it.
  ModelParts parts() const;

  // Starts a step and frees the parameters that gather() added. All other ranks learn wishes_stop and stops
  // in this step.
  void begin_step(int64_t step, bool wishes_stop, bool stops);
  // Copies the parameters and buffers of all other ranks into whole(). Collective over the stages.
  void gather();
  // Copies tied parameters from their first holder to all other holders. Collective over the stages.
  void share_tied();

  // Makes the parameters of whole() that this rank trains show their present values. Call it after an update,
  // which may have moved their memory.
  void show_part();

  // The whole model, for evaluation. Its parameters are valid from the constructor or gather() until
  // begin_step().
  Replica& whole() { return whole_; }
  // The whole model, for evaluation.
  const Replica& whole() const { return whole_; }
  // The cut, as in StageModelOptions::cut.
  const std::vector<size_t>& cut() const { return cut_; }
  // The schedule that the ranks execute.
  const Schedule& schedule() const { return options_.schedule; }
  // The ranks that hold a parameter of whole(), in ascending order.
  const std::vector<int>& holders(size_t parameter) const { return places_[parameter].holders; }
  // The largest number of activations that any rank holds for backward.
  int live_activations() const { return live_; }

  // This rank's result of the last step.
  const ScheduleResult& result() const { return result_; }
  // The notices of the last step, by rank.
  const std::vector<StageNotice>& notices() const { return notices_; }
  // This rank's actions in the last step.
  const std::vector<MeasuredAction>& timeline() const { return run_->timeline(); }
  // The calibrated ranges of the cuts before and behind this rank's stages, or null if there are none.
  CutRanges* ranges() { return run_->ranges(); }
  // Seconds of the last step without computing: messages, tied gradients, notices.
  double wait_s() const { return wait_s_; }

 private:
  // Where a parameter of whole() is held.
  struct Place {
    std::vector<int> holders;  // the first holder sends the parameter for all
    bool own = false;
    at::Tensor part;  // the trained tensor, if `own`
    std::vector<int64_t> sizes;
  };

  void choose_cut(const ModelFactory& factory);
  void place_parameters();
  void share_initial_values();
  void make_part();
  void let_go_of_others();
  at::Tensor loss_of(const Batch& batch);
  void add_to_sums();
  std::vector<at::Tensor> take_gradients();
  void add_tied(std::vector<at::Tensor>& gradients);
  void exchange_notices();

  StageModelOptions options_;
  Group& group_;
  const Clock& clock_;
  int live_ = 0;
  Replica whole_;
  std::vector<size_t> cut_;
  std::vector<Place> places_;  // by parameter of whole_
  // Indexed as places_: the float sums of the gradients of bfloat16 parameters.
  std::vector<at::Tensor> sums_;
  std::vector<int> buffer_owners_;  // the owning rank, by buffer of whole_
  bool gathered_ = true;            // whether whole_ has the parameters of all stages
  Model part_;
  Tensors inputs_;  // between forward and loss
  std::unique_ptr<ScheduleExecutor> run_;
  ScheduleResult result_;
  StageNotice own_notice_;
  std::vector<StageNotice> notices_;
  double wait_s_ = 0;
  int64_t step_ = 0;
};

}  // namespace starling
