// ReplicaStrategy is the base of exchanges that work on whole flat ranges. These exchanges are local SGD,
// elastic averaging, parallel SGD, ADMM, gossip, stochastic gradient push and compressed SGD. For own
// optimizers, they are also all-reduce and ZeRO stages 1 and 2.
// Each rank trains its own FlatReplica. The ranks exchange flat ranges in every step, or from time to time in
// a synchronization round. An algorithm defines what happens in a step and what the agreed model is.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/parallel/replica/flat_replica.h"
#include "starling/parallel/replica/hogwild_team.h"
#include "starling/parallel/strategy.h"

namespace starling {

// A strategy whose replicas may differ between rounds. Not thread-safe.
class ReplicaStrategy : public Strategy, public OwnLoop {
 public:
  // Collective. All ranks start with rank 0's fresh model. The group and the clock must outlive this object.
  // With options.hogwild, the threads of this rank update its parameters in forward_backward(). advance()
  // must then call update_replica(), and must not read gradients.
  ReplicaStrategy(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                  Group& group, const Clock& clock);

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  // Updates the parameters. A step without a round reports this rank's own loss. A request to stop takes
  // effect at the next round.
  StepReport update() final;
  // Shows the agreed model on every rank until the next step. Running statistics become their mean over the
  // ranks.
  void consensus() final;
  // If the replicas differ, each rank averages the weights that its own updates make. The averages of all
  // ranks are then averaged.
  void show_average() final;
  // Returns the agreed model as parameters. What each rank has of its own is named "<kind>@<rank>/<name>".
  StrategyState state() final;
  void load_state(const StrategyState& state) final;

  void take_gradients(const OwnStep& step) final;
  void synchronize() final;

  Replica& evaluated() override { return replica_.replica(); }
  OwnLoop* own_loop() override { return replica_.options().own_gradients ? this : nullptr; }
  // This rank's replica.
  const FlatReplica& replica() const { return replica_; }
  // The threads of this rank that train without locks, or null. The strategy owns them.
  HogwildTeam* threads() { return team_.get(); }

 protected:
  // True if the ranks train on the mean of their gradients, so that all replicas and optimizers stay equal.
  // A checkpoint then keeps them once.
  virtual bool averages_gradients() const { return false; }
  // True if the optimizers of all ranks have equal states, which a checkpoint then keeps once.
  virtual bool equal_optimizers() const { return averages_gradients(); }
  // Replaces the gradients by their mean over the ranks. Called once before advance() if
  // averages_gradients(). `whole`: every rank needs the whole mean; otherwise each rank needs what it
  // updates.
  virtual void exchange_gradients(bool /*whole*/) {}
  // Performs this rank's part of the step: the update and, if a round is due, the exchange. Returns true, on
  // all ranks, if ranks may now agree whether to stop. The ranks then wait for each other. If it never
  // returns true, a request to stop has no effect.
  virtual bool advance(StepReport& report) = 0;
  // Returns the agreed model. Collective.
  virtual at::Tensor agreed() = 0;
  // The flat ranges of this rank, beyond parameters and optimizer states, that a checkpoint keeps.
  virtual std::map<std::string, at::Tensor*> own_ranges() { return {}; }
  // The single numbers that a checkpoint keeps. They are equal on all ranks.
  virtual std::map<std::string, double*> own_numbers() { return {}; }

  // Other values of this rank that a checkpoint keeps: fp32, one dimension, of equal length on all ranks.
  // Undefined if there are none.
  virtual at::Tensor own_values() { return {}; }
  // Loads what own_values() returned, perhaps in an earlier version. Errors: Error(kCheckpoint) if the values
  // do not fit.
  virtual void take_own_values(const at::Tensor& /*values*/) {}

  // Updates this rank's parameters from its gradients. With options.hogwild, the threads have done so
  // already.
  void update_replica() {
    if (!team_) replica_.update(step_);
  }
  // Adds the statistics of the threads (HogwildTeam::tell), if there are any.
  void tell_threads(StrategyStats& stats) const {
    if (team_) team_->tell(stats);
  }

  // Returns the mean of a flat range over the ranks, in a new tensor. Collective. It sends 2 (p − 1)/p of the
  // range's bytes per rank.
  at::Tensor mean_over_ranks(const at::Tensor& flat);
  // Runs `exchange` and counts its time as exposed communication of `phase`.
  template <typename F>
  void exchanging(StepReport& report, ExchangePhase phase, F exchange) {
    const Nanoseconds start = clock_.now();
    exchange();
    report.expose(phase, to_seconds(clock_.now() - start));
  }

  FlatReplica replica_;  // the model of this rank and its optimizer
  Group& group_;         // the ranks that train
  const Clock& clock_;   // measures the phases of a step
  Step step_;            // the step that runs, or the last one
  Batch batch_;          // of the step
  double own_loss_ = 0;  // of this rank in the step

 private:
  std::map<std::string, at::Tensor*> kept_ranges();
  const std::string& part_name();
  void exchange_once(bool whole);

  std::unique_ptr<HogwildTeam> team_;  // null without options.hogwild
  double forward_backward_s_ = 0;
  std::optional<Agreement> agreed_early_;  // of the step, if the ranks agreed before they exchanged gradients
  bool exchanged_ = false;                 // the gradients of the step
};

}  // namespace starling
