// StageModel: what a rank of a pipeline holds, as a Model of its own. The part's module has the parameters and buffers of the
// rank's stages, under their names in the whole model; forward and loss of a batch run the table (table_run.h) together with
// the other ranks of the pipeline; backward() from that loss brings each parameter its gradient
//
//   g = 1/m Σ_i ∇ loss(micro-batch i)
//
// So whatever trains a Model trains a stage: every exchange of replicas works on a pipeline's ranks as on whole models.
// Without a gradient mode the table runs forward only.
//
// Parameters that blocks of several ranks use (tied embeddings) are in the part of each: their gradients are added up, in the
// order of the ranks, so that what updates them alike keeps them equal bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/blocks.h"
#include "starling/parallel/model_parts.h"
#include "starling/parallel/pipeline/table_run.h"
#include "starling/parallel/replica.h"
#include "starling/plan/pipeline_schedule.h"

namespace starling {

struct StageModelOptions {
  Schedule schedule;  // for as many ranks as the group; checked by the constructor
  // Parameters and arithmetic: float, double or bfloat16, whose gradients are summed up in float (replica.h says what then
  // stays float all the same).
  at::ScalarType type = at::kFloat;
  uint64_t seed = 0;
  // Where each stage begins in the model's blocks, and at last their number. Empty: cut for balance, by the blocks' measured
  // times if there is a sample, else by their parameters. The cut changes no result.
  std::vector<size_t> cut;
  Batch sample;  // a micro-batch to measure with, on rank 0; what it finds holds for all
  std::string activations =
      "none";  // how they and their gradients travel between stages (activation_coder.h)
};

// What the ranks of a pipeline tell each other of a step; doubles only.
struct StageNotice {
  double loss = 0;  // on the last stage
  double wishes_stop = 0, stops = 0;
  double busy_s = 0, span_s = 0, payload_bytes = 0;
  double forward_s = 0, backward_s = 0;  // mean of one, over the rank's chunks and micro-batches
};

class StageModel {
 public:
  // Collective over `stages`. Parameters are those of its rank 0's fresh model. stages and clock outlive this.
  // Errors: ConfigError for a schedule that check_schedule refuses or of other ranks, more stages than blocks, a cut that is
  // none, or a model without blocks.
  StageModel(const ModelFactory& factory, const StageModelOptions& options, Group& stages,
             const Clock& clock);
  ~StageModel();

  // The part. This outlives it. What is trained are its parameters, wherever their memory is moved to.
  const Model& part() const { return part_; }
  ModelParts parts() const;

  // Before a step: what gather() brought goes. wishes_stop, stops: told to the other ranks with the step.
  void begin_step(int64_t step, bool wishes_stop, bool stops);
  // Brings the other ranks' parameters and buffers into whole(). Collective over the stages.
  void gather();
  // Copies of tied parameters become what their first holder has. Collective over the stages.
  void share_tied();

  // The whole model, for evaluation; its parameters are in place between the constructor or gather() and begin_step().
  Replica& whole() { return whole_; }
  const Replica& whole() const { return whole_; }
  const std::vector<size_t>& cut() const { return cut_; }
  const Schedule& schedule() const { return options_.schedule; }
  // The ranks that hold a parameter of whole(), ascending.
  const std::vector<int>& holders(size_t parameter) const { return places_[parameter].holders; }
  int live_activations() const { return live_; }

  // Of the last step.
  const TableResult& result() const { return result_; }
  const std::vector<StageNotice>& notices() const { return notices_; }  // by rank
  const std::vector<MeasuredAction>& timeline() const { return run_->timeline(); }
  double wait_s() const { return wait_s_; }  // not computing: messages, tied gradients, notices

 private:
  struct Place {               // a parameter, by its index in whole()
    std::vector<int> holders;  // the first speaks for them
    bool own = false;
    at::Tensor part;  // of an own one: what is trained
    std::vector<int64_t> sizes;
  };

  void choose_cut(const ModelFactory& factory);
  void place_parameters();
  void share_initial_values();
  void make_part();
  void let_go_of_others();
  void compute_with_part();
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
  std::vector<Place> places_;       // by parameter of whole_
  std::vector<at::Tensor> sums_;    // as places_: of the gradients of bfloat16 parameters so far, in float
  std::vector<int> buffer_owners_;  // by buffer of whole_: the rank
  bool gathered_ = true;            // the parameters of other stages are here
  Model part_;
  at::Tensor input_;  // between forward and loss
  std::unique_ptr<TableRun> run_;
  TableResult result_;
  StageNotice own_notice_;
  std::vector<StageNotice> notices_;
  double wait_s_ = 0;
  int64_t step_ = 0;
};

}  // namespace starling
