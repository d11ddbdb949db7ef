// Parallel SGD: each rank trains by itself on shuffled samples, and rank 0 (the driver) collects, combines
// and returns the weights.
//
// The samples are first shuffled between the ranks, so that the part of each rank represents the whole
// (parallel/replica/sample_shuffle.h). There are two forms:
//
//   one round       w = 1/p Σ_k w_k, at the end (Zinkevich et al., "Parallelized Stochastic Gradient
//                   Descent", NIPS 2010)
//   several rounds  the ranks continue from the combined weights (iterative parameter mixing;
//                   McDonald et al., NAACL 2010)
//
// combine = average takes the mean of the weights. combine = best is model selection. It takes the weights of
// the rank whose model has the smallest loss on the held-out samples of all ranks. No rank trains on the
// held-out samples. The driver gets these samples at the first combination and computes the loss of each
// model on them.
//
// A round moves (p − 1) |W| bytes to the driver and (p − 1) |W| bytes back, all through one rank.
#pragma once

#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// How the driver combines the weights of the ranks.
enum class Combine { kAverage, kBest };

// The exchange "parallel-sgd".
class ParallelSgd final : public ReplicaStrategy {
 public:
  // Collective over the group. every: steps in a round, at least 1. held_out: this rank's samples for
  // Combine::kBest, at least one; the average does not read them. The group and the clock must outlive this
  // object.
  ParallelSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, int64_t every,
              Combine combine, Batch held_out, Group& group, const Clock& clock);

  // Returns combines (the number of combinations), every and best_rank (of the last combination; -1 for the
  // average).
  StrategyStats strategy_stats() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return combined(); }

 private:
  at::Tensor combined();
  size_t best_of(const std::vector<at::Tensor>& candidates);
  void collect_held_out();

  int64_t every_;
  Combine combine_;
  Batch held_out_;
  bool collected_ = false;           // whether rank 0 has the samples of all ranks
  std::vector<Batch> all_held_out_;  // of all ranks; on rank 0, from the first combination on
  double combines_ = 0, best_rank_ = -1;
};

}  // namespace starling
