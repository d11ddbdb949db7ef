// ZeRO stage 3 for a loop or an optimizer of the user's program. Each rank owns 1/p of the parameters. It
// also owns 1/p of the gradients that the update reads, and of the optimizer's states:
//
//   g_r ← 1/p Σ_k g_k  on the elements of rank r;  w_r ← O(w_r, g_r)
//
// (Rajbhandari et al. 2020, arXiv 1910.02054. zero.h has the form with an update rule.) The optimizer must
// update each element by itself. Nothing is known of the module: a unit of parameters (parameter_unit.h) is
// gathered when an operation of libtorch uses it.
//
// Between steps a rank holds 1/p of the parameters and no gradients. A loop may accumulate gradients and
// weigh them afterwards. So the whole gradient of a rank exists from backward to the update. A pass that uses
// each unit once gathers it in forward, and again in backward if other units were used meanwhile. With one
// pass a step then sends at most 3 (p − 1)/p |W| bytes per rank. synchronize() adds (p − 1)/p |W| bytes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/parallel/replica/replica_strategy.h"
#include "starling/parallel/zero/parameter_unit.h"

namespace starling {

// The strategy of train.shard = "parameters" with an own optimizer. Not thread-safe: the thread that makes
// this object also destroys it, and computes.
class ShardedParameters final : public Strategy, public OwnLoop {
 public:
  // Collective. Parameters and buffers are those of rank 0's fresh model. options.optimizer is set. A unit
  // ends when it has at least `unit_bytes` bytes of parameters. The group and the clock must outlive this
  // object. Errors: ConfigError if the optimizer cannot be sharded.
  ShardedParameters(const ModelFactory& factory, const FlatReplicaOptions& options, size_t unit_bytes,
                    Group& group, const Clock& clock);
  // Makes the module whole. Collective. If an exception is under way or the group has failed, libtorch throws
  // for an access to a parameter afterwards.
  ~ShardedParameters() override;

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  // Makes the model whole on every rank until the next step. Running statistics become their mean over the
  // ranks.
  void consensus() override;
  // Collective. Returns whole parameters on rank 0. The states of the optimizer are those of each rank, so
  // only a run with as many ranks can load them.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;
  Replica& evaluated() override { return replica_; }
  OwnLoop* own_loop() override { return options_.own_gradients ? this : nullptr; }

  void take_gradients(const OwnStep& step) override;
  void synchronize() override;

  // Returns stage, which is 3, and these values:
  // parameter_bytes    What this rank holds of the parameters between steps.
  // shard_elements     The number of elements that this rank updates.
  // gradient_elements  The gradient elements that this rank held while its optimizer updated.
  // temporary_bytes    The largest amount of gathered parameters.
  // units, gathers     The number of units, and of gathers in the last step.
  // traffic_elements   What this rank received for these gathers.
  StrategyStats strategy_stats() override;

 private:
  void make_whole();
  void exchange_once(bool whole);
  void clip();
  void refuse_unless_finite() const;
  void count_step();
  const std::string& part_name() const;

  const FlatReplicaOptions options_;
  Group& group_;
  const Clock& clock_;
  Replica replica_;
  ParameterAccount account_, at_begin_;
  GatherOnUse gatherer_;
  std::vector<std::unique_ptr<ParameterUnit>> units_;
  std::shared_ptr<OwnOptimizer> optimizer_;
  std::vector<double> used_;  // by parameter: 0 if it had no gradient on any rank
  Step step_;
  std::optional<bool> stop_;  // whether a rank asks to stop, once the gradients are exchanged
  double own_loss_ = 0, forward_backward_s_ = 0;
  double held_ = 0;                             // elements of gradients during the last update
  double gathers_ = 0, received_elements_ = 0;  // in the last step
};

}  // namespace starling
