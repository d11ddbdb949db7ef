// Pipeline parallelism: the model is cut into consecutive stages, the ranks hold one or several of them each, and the
// micro-batches of a step move through them in the order of a table (plan/pipeline_schedule.h: naive, gpipe, 1f1b,
// interleaved, or a user's file). The step is the same as one process's on the whole batch, whatever the table:
//
//   g = 1/m Σ_i ∇ loss(micro-batch i),   w := w − lr · U(g)    by the stage that holds w
//
// (Huang et al., GPipe, arXiv 1811.06965; Narayanan et al., arXiv 2104.04473.) What is not the same as in one process: batch
// norm takes its statistics from each micro-batch.
//
// Parameters that blocks of several ranks use (tied embeddings) live on each of them: their gradients are added up before
// the update, which all of them make alike, so the copies stay equal bit for bit. The order of the sum is that of the ranks.
//
// Memory: a rank trains its stages' parameters, gradients and optimizer states. consensus() brings the others' parameters
// in, for evaluation and saving; the next begin_step() lets them go.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/blocks.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/pipeline/table_run.h"
#include "starling/parallel/replica.h"
#include "starling/parallel/strategy.h"
#include "starling/plan/pipeline_schedule.h"

namespace starling {

struct PipelineOptions {
  Schedule schedule;                   // for as many ranks as the group; checked by the constructor
  at::ScalarType master = at::kFloat;  // parameters, states and arithmetic: float or double
  double clip_norm = 0;  // gradients are scaled to at most this norm of the whole model; 0 = off
  uint64_t seed = 0;
  // Where each stage begins in the model's blocks, and at last their number. Empty: cut for balance, by the blocks' measured
  // times if there is a sample, else by their parameters. The cut changes no result.
  std::vector<size_t> cut;
  Batch sample;  // a micro-batch to measure with, on rank 0; what it finds holds for all
};

class Pipeline final : public Strategy {
 public:
  // Collective over the group. Parameters are those of rank 0's fresh model. group and clock outlive this.
  // Errors: ConfigError for a schedule that check_schedule refuses or of other ranks, more stages than blocks, a cut that is
  // none, or a model without blocks.
  Pipeline(const ModelFactory& factory, UpdateRule rule, const PipelineOptions& options, Group& group,
           const Clock& clock);
  ~Pipeline() override;

  void begin_step(const Step& step) override;
  // batch: the whole global batch of the step, on every rank. The loss is known on the last stage; elsewhere 0.
  double forward_backward(const Batch& batch) override;
  // bytes_sent is 0: the group counts what passes through it. slowest_rank: the one that computed longest.
  StepReport update() override;
  void consensus() override;
  // Collective. Complete on rank 0, empty elsewhere; under global names, whatever the cut.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // The whole model; its parameters are in place between the constructor or consensus() and the next begin_step().
  Replica& replica() { return replica_; }
  const std::vector<size_t>& cut() const { return cut_; }
  // The parameters that this rank trains.
  std::vector<std::string> own_parameters() const;

  // Of the last step, equal on all ranks: "bubble" (measured: 1 − Σ computing / (ranks · longest span of a rank)),
  // "bubble_planned" (the formula; a user's table: under unit costs), "bubble_balanced" (the table played through with the
  // measured times of forward and backward by rank: the rest of the difference is waiting for messages and the machine),
  // "stages", "micro_batches", "live_activations" (the most of any rank) and "stage_bytes" (activations and gradients between
  // stages). "bubble_mean" is the mean over the steps after the first.
  std::vector<std::pair<std::string, double>> fingerprint() const;

  // Collective. Of the last step, all ranks' actions by rank; complete on rank 0, empty elsewhere. Times are from the
  // earliest begin on one host; on several hosts, whose clocks differ, from each rank's own begin.
  std::vector<MeasuredAction> gather_timeline();

 private:
  struct Place {               // a parameter, by its index in the replica
    std::vector<int> holders;  // ranks, ascending; the first speaks for them
    bool own = false;
    std::vector<at::Tensor> states;  // of an own one
    std::vector<int64_t> sizes;
  };
  struct Notice {  // what each rank tells the others of a step; doubles only
    double loss = 0, stop = 0, busy_s = 0, span_s = 0, begin_ns = 0, payload_bytes = 0;
    double forward_s = 0, backward_s = 0;  // mean of one, over the rank's chunks and micro-batches
  };

  void choose_cut(const ModelFactory& factory);
  void place_parameters();
  void share_initial_values();
  void add_tied_gradients();
  double clip_scale();
  template <typename T>
  void apply(size_t parameter, double scale);
  at::Tensor gradient_of(size_t parameter);
  void let_go_of_others();
  void read_notices(StepReport& report);

  PipelineOptions options_;
  UpdateRule rule_;
  Group& group_;
  const Clock& clock_;
  int live_ = 0;
  Replica replica_;
  std::vector<BlockTensors> block_tensors_;
  std::vector<size_t> cut_;
  std::vector<Place> places_;       // by parameter
  std::vector<int> buffer_owners_;  // by buffer: the rank
  bool whole_ = true;               // the parameters of other stages are here
  std::unique_ptr<TableRun> run_;
  TableResult result_;
  std::vector<Notice> notices_;  // by rank, of the last step
  double bubble_ = 0, bubble_sum_ = 0;
  int64_t steps_seen_ = 0;
  Step step_;
};

}  // namespace starling
