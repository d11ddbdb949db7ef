// Elastic averaging SGD, the synchronous form: each rank trains alone, and an elastic force draws its
// parameters x_k and a common center c together.
//
//   x_k ← x_k − lr · U(g_k(x_k))                        each step
//   d_k = x_k − c,  x_k ← x_k − β/p d_k,  c ← c + β · 1/p Σ_k d_k      every H-th step
//
// (Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015, with α = β/p.) β is
// exchange.elastic, from 0 to 1. The ranks keep their distance from the center, so they explore more than
// with local SGD, which sets every x_k to the mean. If gradients are zero, a round multiplies each distance
// from the mean by 1 − β/p and the center's distance from the mean by 1 − β − β/p. So the ranks agree in the
// limit, but for p = 1 and β = 1.
//
// In the paper, the gradient step and the force both begin at x_k of the step before. Here the force follows
// the gradient step, as the averaging of local SGD does.
//
// The agreed model is the center. Every rank holds a copy of it and adds the same numbers, so the copies stay
// equal. Each rank keeps its own optimizer states. A round is one all-reduce: 2 (p − 1)/p · |W| bytes per
// rank.
#pragma once

#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// The exchange "easgd".
class Easgd final : public ReplicaStrategy {
 public:
  // Collective over the group. every: H, at least 1. elastic: β, above 0 and at most 1. All ranks start with
  // the same parameters. The group and the clock must outlive this object.
  Easgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, int64_t every,
        double elastic, Group& group, const Clock& clock);

  // Returns rounds and disagreement, the root of the mean over the ranks of the present ‖x_k − c‖².
  // Collective.
  StrategyStats strategy_stats() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return center_.clone(); }
  std::map<std::string, at::Tensor*> own_ranges() override { return {{"center", &center_}}; }
  std::map<std::string, double*> own_numbers() override { return {{"rounds", &rounds_}}; }

 private:
  int64_t every_;
  double elastic_;
  at::Tensor center_;  // c
  double rounds_ = 0;
};

}  // namespace starling
