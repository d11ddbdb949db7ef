// Local SGD: every rank trains by itself; every H steps all of them take the mean of their parameters.
//
//   x_k ← x_k − lr · U(g_k(x_k))        each step
//   x_k ← 1/p Σ_j x_j                   every H-th step
//
// (Stich, "Local SGD Converges Fast and Communicates Little", arXiv 1805.09767.) H = 1 with plain SGD is synchronous SGD. The
// optimizer's states stay each rank's own. A round sends 2 (p − 1)/p · |W| bytes a rank.
// Averaging too late fails: the mean of different minima need not be a minimum. The fingerprint shows it: the mean loss of the
// ranks' batches just before and just after averaging.
#pragma once

#include "starling/parallel/replica_strategy.h"

namespace starling {

class LocalSgd final : public ReplicaStrategy {
 public:
  // every: H, at least 1.
  LocalSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, int64_t every,
           Group& group, const Clock& clock);

  // rounds, every, loss_before_averaging, loss_after_averaging (means over the measured rounds and the ranks).
  Fingerprint fingerprint() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return mean_over_ranks(replica_.parameters()); }

 private:
  void measured_average(StepReport& report);

  int64_t every_;
  double rounds_ = 0, measured_ = 0, before_ = 0, after_ = 0;
};

}  // namespace starling
