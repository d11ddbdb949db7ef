// ReplicaStrategy: what the exchanges share whose replicas differ between rounds (local SGD, parallel SGD, ADMM, gossip): each
// rank trains a FlatReplica of its own; now and then (a round) they exchange whole flat ranges. An algorithm fills in what
// happens in a step and what the agreed model is.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/parallel/flat_replica.h"

namespace starling {

// What a strategy reports of itself at the end of a run: name -> number, compared with theory by the tests.
using Fingerprint = std::map<std::string, double>;

class ReplicaStrategy : public Strategy {
 public:
  // Collective. Every rank begins with the parameters that options.seed gives. group and clock outlive this.
  ReplicaStrategy(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                  Group& group, const Clock& clock);

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  // Steps without a round report this rank's own loss; a wish to stop is heard at the next round.
  StepReport update() final;
  // Shows the agreed model on every rank until the next step; running statistics become their mean.
  void consensus() final;
  // Parameters are the agreed model; what is each rank's own goes by "<kind>@<rank>/<name>".
  StrategyState state() final;
  void load_state(const StrategyState& state) final;

  // Collective: what this algorithm says of itself.
  virtual Fingerprint fingerprint() { return {}; }

  Replica& evaluated() { return replica_.replica(); }
  const FlatReplica& replica() const { return replica_; }

 protected:
  // This rank's part of the step: the update, and the exchange where a round is due. Returns whether all ranks met.
  virtual bool advance(StepReport& report) = 0;
  // The agreed model. Collective.
  virtual at::Tensor agreed() = 0;
  // Flat ranges of this rank, beyond parameters and optimizer states, that a checkpoint keeps.
  virtual std::map<std::string, at::Tensor*> own_ranges() { return {}; }
  // Single numbers that a checkpoint keeps (equal on all ranks).
  virtual std::map<std::string, double*> own_numbers() { return {}; }

  // What else of this rank a checkpoint keeps: fp32, one dimension, as long on all ranks. Undefined: nothing.
  virtual at::Tensor own_values() { return {}; }
  virtual void take_own_values(const at::Tensor& /*values*/) {}

  // The mean over the ranks of a flat range, in a new tensor. Collective; 2 (p - 1)/p of its bytes a rank.
  at::Tensor mean_over_ranks(const at::Tensor& flat);
  // Runs `exchange` and counts its time as exposed communication.
  template <typename F>
  void exchanging(StepReport& report, F exchange) {
    const Nanoseconds start = clock_.now();
    exchange();
    report.exposed_comm_s += to_seconds(clock_.now() - start);
  }

  FlatReplica replica_;
  Group& group_;
  const Clock& clock_;
  Step step_;
  Batch batch_;  // of the step
  double own_loss_ = 0;

 private:
  std::map<std::string, at::Tensor*> kept_ranges();
  const std::string& part_name();

  double forward_backward_s_ = 0;
};

}  // namespace starling
