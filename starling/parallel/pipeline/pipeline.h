// Pipeline parallelism: the model is cut into consecutive stages, the ranks hold one or several of them each, and the
// micro-batches of a step move through them in the order of a table (plan/pipeline_schedule.h: naive, gpipe, 1f1b,
// interleaved, or a user's file). With one replica a step is the same as one process's on the whole batch, whatever the table:
//
//   g = 1/m Σ_i ∇ loss(micro-batch i),   w := w − lr · U(g)    by the stage that holds w
//
// (Huang et al., GPipe, arXiv 1811.06965; Narayanan et al., arXiv 2104.04473.) What is not the same as in one process: batch
// norm takes its statistics from each micro-batch.
//
// Several replicas: the ranks that hold the same stage of every replica are a group, and any strategy trains the stage over it,
// as if the stage were a model (stage_model.h). This class puts the two together: it is the strategy of the whole.
//
// Memory: a rank trains its stages' parameters, gradients and optimizer states. consensus() brings the others' parameters
// in, for evaluation and saving; the next begin_step() lets them go.
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
#include "starling/parallel/built_strategy.h"
#include "starling/parallel/pipeline/stage_model.h"
#include "starling/parallel/strategy.h"

namespace starling {

struct PipelineOptions {
  Schedule schedule;  // for as many ranks as the group; checked by the constructor
  at::ScalarType master =
      at::kFloat;  // of the strategy of a single replica: parameters and states, float or double
  at::ScalarType working = at::kFloat;  // StageModelOptions::type: master, or bfloat16
  double clip_norm = 0;                 // of the strategy of a single replica: see AllReduceOptions
  uint64_t seed = 0;
  std::string activations = "none";  // as in StageModelOptions
  std::vector<size_t> cut;           // as in StageModelOptions
  Batch sample;                      // as in StageModelOptions
  // Of several replicas.
  int replica = 0;          // which one this rank is of
  std::vector<int> ranks;   // of the job, of each rank of the group; empty: they are equal
  bool share_tied = false;  // the exchange does not keep copies of tied parameters equal: each step does
  std::vector<Group*>
      counting;  // groups whose traffic is in update()'s bytes_sent, because nobody else counts it
};

class Pipeline final : public Strategy {
 public:
  // What trains a stage: a strategy of the factory's model over the ranks that hold this stage of every replica, of which 0 is
  // that of replica 0.
  using MakeExchange = std::function<BuiltStrategy(const ModelFactory& part, const StageModel& stage)>;

  // Collective over the group, the ranks of one replica, and over what make_exchange needs. Parameters are those of rank 0's
  // fresh model. group and clock outlive this. Errors: those of StageModel and of the exchange.
  Pipeline(const ModelFactory& factory, const PipelineOptions& options, Group& group, const Clock& clock,
           const MakeExchange& make_exchange);
  // One replica: nothing is exchanged, each rank updates its stage.
  Pipeline(const ModelFactory& factory, const UpdateRule& rule, const PipelineOptions& options, Group& group,
           const Clock& clock);
  ~Pipeline() override;

  // A wish to stop, and word that a run stops, reach the ranks of a replica with the next step's notices: update() says so a
  // step or two later than without stages.
  void begin_step(const Step& step) override;
  // batch: the replica's samples of the step, on each of its ranks. Returns their loss on all of them.
  double forward_backward(const Batch& batch) override;
  // slowest_rank: the one of this replica that computed longest.
  StepReport update() override;
  void consensus() override;
  // Collective. Complete on rank 0 of replica 0; under global names, whatever the cut.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // The whole model; its parameters are in place between the constructor or consensus() and the next begin_step().
  Replica& replica() { return stage_->whole(); }
  const std::vector<size_t>& cut() const { return stage_->cut(); }
  // What trains this rank's stages.
  Strategy& exchange() { return *exchange_.strategy; }

  // Of the last step, equal on all ranks: "bubble" (measured: 1 − Σ computing / (ranks · longest span of a rank)),
  // "bubble_planned" (the formula; a user's table: under unit costs), "bubble_balanced" (the table played through with the
  // measured times of forward and backward by rank: the rest of the difference is waiting for messages and the machine),
  // "stages", "micro_batches", "live_activations" (the most of any rank) and "stage_bytes" (activations and gradients between
  // stages). "bubble_mean" is the mean over the steps after the first.
  std::vector<std::pair<std::string, double>> fingerprint() const;
  // That of the exchange, on this rank's stage. Collective.
  std::map<std::string, double> exchange_fingerprint() { return exchange_.fingerprint(); }

  // Collective. Of the last step, all ranks' actions by rank; complete on rank 0, empty elsewhere. Times are from the
  // earliest begin on one host; on several hosts, whose clocks differ, from each rank's own begin.
  std::vector<MeasuredAction> gather_timeline();

 private:
  uint64_t counted_bytes() const;
  void read_notices(StepReport& report);

  PipelineOptions options_;
  Group& group_;
  const Clock& clock_;
  std::unique_ptr<Group> alone_;  // the replica axis of a single replica
  std::unique_ptr<StageModel> stage_;
  BuiltStrategy exchange_;
  double bubble_ = 0, bubble_sum_ = 0;
  int64_t steps_seen_ = 0;
  bool wish_heard_ = false;  // some rank of this replica wished to stop, by the notices so far
  bool stops_ = false;       // this rank's exchange has said that the run stops
  uint64_t counted_before_ = 0;
};

}  // namespace starling
