// Pipeline parallelism: the model is cut into consecutive stages, and each rank holds one or several stages.
// The micro-batches of a step move through the stages in the order of a schedule (plan/pipeline_schedule.h:
// naive, gpipe, 1f1b, interleaved, or a user's file).
//
// With one replica, a step equals a step of one process on the whole batch, whatever the schedule:
//
//   g = 1/m Σ_i ∇ loss(micro-batch i),   w := w − lr · U(g)    by the stage that holds w
//
// (Huang et al., GPipe, arXiv 1811.06965; Narayanan et al., arXiv 2104.04473.) There is one exception: batch
// norm takes its statistics from each micro-batch.
//
// With several replicas, the ranks that hold the same stage of every replica are a group. Any strategy trains
// the stage over this group as if the stage were a model (pipeline/stage_model.h). Pipeline combines the
// stages into a strategy of the whole model.
//
// A rank keeps the parameters, gradients and optimizer states of its own stages. consensus() adds the
// parameters of all other stages for evaluation and saving; the next begin_step() frees them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/pipeline/stage_model.h"
#include "starling/parallel/pipeline/traced.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Settings of Pipeline and of LayerPerCore.
struct PipelineOptions {
  Schedule schedule;  // for as many ranks as the group has; the constructor checks it
  // Type of parameters and states in the strategy of a single replica: float or double.
  at::ScalarType master = at::kFloat;
  at::ScalarType working = at::kFloat;  // StageModelOptions::type: master, or bfloat16
  double clip_norm = 0;                 // of the strategy of a single replica: see AllReduceOptions
  uint64_t seed = 0;
  ActivationSettings activations;  // as in StageModelOptions
  std::vector<size_t> cut;         // as in StageModelOptions
  Batch sample;                    // as in StageModelOptions
  ActionPace pace = {};            // as in StageModelOptions
  // The fields from here on matter only if there are several replicas. This rank belongs to replica number
  // `replica`.
  int replica = 0;
  int replicas = 1;             // number of replicas
  bool tells_exchange = false;  // whether strategy_stats() includes those of the exchange
  // Whether each step must make copies of tied parameters equal, because the exchange does not keep them
  // equal.
  bool share_tied = false;
  // The ranks that hold this stage, one in each replica, in their order. state() gathers calibrated ranges
  // over this group. Null if there is one replica.
  Group* same_stage = nullptr;
  // Groups whose traffic update() adds to bytes_sent, because no other object counts it.
  std::vector<Group*> counting;
};

// One rank of a pipeline. Not thread-safe.
class Pipeline final : public Strategy, public Traced {
 public:
  // Makes the strategy that trains a stage: a strategy of the factory's model over the ranks that hold this
  // stage of every replica. Rank 0 of those belongs to replica 0.
  using MakeExchange =
      std::function<std::unique_ptr<Strategy>(const ModelFactory& part, const StageModel& stage)>;

  // Collective over the group, which holds the ranks of one replica, and over what make_exchange needs.
  // Parameters are those of rank 0's fresh model. The group and the clock must outlive this object. Errors:
  // those of StageModel and of the exchange.
  Pipeline(const ModelFactory& factory, const PipelineOptions& options, Group& group, const Clock& clock,
           const MakeExchange& make_exchange);
  // Makes a pipeline of one replica: nothing is exchanged, and each rank updates its stages.
  Pipeline(const ModelFactory& factory, const UpdateRule& rule, const PipelineOptions& options, Group& group,
           const Clock& clock);
  ~Pipeline() override;

  // Starts a step. The notices of the next step tell the ranks of a replica that a rank is asked to stop or
  // that the run stops. update() therefore reports a stop one or two steps later than without stages.
  void begin_step(const Step& step) override;
  // batch: the replica's samples of the step, equal on each rank of the replica. Returns their mean loss on
  // all ranks.
  double forward_backward(const Batch& batch) override;
  // slowest_rank is the rank of this replica that computed longest.
  StepReport update() override;
  void consensus() override;
  void show_average() override;
  // Collective. Complete on rank 0 of replica 0 and empty on all other ranks. Names are global and do not
  // depend on the cut.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // The whole model. Its parameters are valid from the constructor or consensus() until the next
  // begin_step().
  Replica& replica() { return stage_->whole(); }
  Replica& evaluated() override { return stage_->whole(); }
  // The cut of the model into stages, as in StageModelOptions::cut.
  const std::vector<size_t>& cut() const { return stage_->cut(); }
  // The strategy that trains this rank's stages.
  Strategy& exchange() { return *exchange_; }

  // Returns values of the last step, equal on all ranks. "bubble" is measured: 1 − Σ computing / (ranks ·
  // longest span of a rank). "bubble_planned" is the formula or, for a user's schedule, a simulation with
  // default costs. "bubble_balanced" simulates the schedule with the measured times of forward and backward
  // of each rank. The rest of the measured bubble is waiting for messages and for the machine. "bubble_mean"
  // is the mean over the steps after the first. "stages" and "micro_batches" describe the schedule.
  // "live_activations" is the largest number on any rank. "stage_bytes" counts activations and gradients
  // between stages. With calibrated ranges, "ranged_values" counts the values of this replica's steps so far
  // that were sent with a range. "saturated_values" counts those beyond their range. "replicas" is the
  // number of replicas. If options.tells_exchange is set, the statistics of the exchange on this rank's stage
  // follow; they may differ between the ranks.
  StrategyStats strategy_stats() override;

  // Returns the actions of all ranks in the last step, ordered by rank. Collective. Complete on rank 0 and
  // empty on all other ranks. On one host, times count from the start of the earliest action of any rank.
  // Clocks of several hosts differ, so there each rank counts from the start of its own first action.
  std::vector<MeasuredAction> gather_timeline() override;
  std::vector<uint64_t> bytes_from_servers() override { return exchange_->bytes_from_servers(); }
  Traced* traced() override { return this; }
  const Schedule& schedule() const override { return options_.schedule; }

 private:
  uint64_t counted_bytes() const;
  void read_notices(StepReport& report);
  void add_ranges(StrategyState& state);

  PipelineOptions options_;
  Group& group_;
  const Clock& clock_;
  std::unique_ptr<Group> alone_;  // the replica axis of a single replica
  std::unique_ptr<StageModel> stage_;
  std::unique_ptr<Strategy> exchange_;
  double bubble_ = 0, bubble_sum_ = 0;
  double ranged_values_ = 0, saturated_values_ = 0;  // sums over the steps and the ranks of this replica
  int64_t steps_seen_ = 0;
  bool wish_heard_ = false;  // according to the notices so far, some rank of this replica asked all to meet
  bool stops_ = false;       // this rank's exchange has reported that all ranks meet
  uint64_t counted_before_ = 0;
};

}  // namespace starling
