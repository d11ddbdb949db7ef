// Parallel SGD: the samples are shuffled between the ranks so that each rank's part stands for the whole; every rank trains by
// itself; a driver (rank 0) collects the weights, combines them and hands them out again.
//
//   one round   Zinkevich et al., "Parallelized Stochastic Gradient Descent", NIPS 2010: w = 1/p Σ_k w_k, once, at the end
//   more        iterative parameter mixing (McDonald et al., NAACL 2010): the ranks go on from the combined weights
//
// combine = average: the mean of the weights. combine = best: the weights of the rank whose model has the smallest loss on the
// union of all ranks' latest mini-batches, which the driver computes for each (model selection).
// A round moves (p − 1) |W| to the driver and as much back, all of it through one rank. The shuffle of the samples
// is parallel/sample_shuffle.h.
#pragma once

#include "starling/parallel/replica_strategy.h"

namespace starling {

enum class Combine { kAverage, kBest };

class ParallelSgd final : public ReplicaStrategy {
 public:
  // every: steps of a round.
  ParallelSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, int64_t every,
              Combine combine, Group& group, const Clock& clock);

  // combines, every, best_rank (of the last combination, -1 for the average).
  Fingerprint fingerprint() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return combined(); }

 private:
  at::Tensor combined();
  size_t best_of(const std::vector<at::Tensor>& candidates);
  std::vector<Batch> collect_batches();

  int64_t every_;
  Combine combine_;
  double combines_ = 0, best_rank_ = -1;
};

}  // namespace starling
