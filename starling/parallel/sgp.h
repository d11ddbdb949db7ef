// Stochastic gradient push: decentralized SGD on directed graphs, by push-sum.
//
//   x_i ← x_i − lr · U(g_i(z_i))                        z_i = x_i / w_i, at first w_i = 1
//   send s_i x_i and s_i w_i to every out-neighbor      s_i = 1 / (number of out-neighbors + 1)
//   x_i ← s_i x_i + Σ_{j → i} s_j x_j,   w_i ← s_i w_i + Σ_{j → i} s_j w_j
//
// (Assran, Loizou, Ballas, Rabbat, "Stochastic Gradient Push for Distributed Deep Learning", ICML 2019,
// algorithm 1.) A rank needs to know only to whom it sends. The weights w correct what a graph of unequal
// out-degrees does to the sums, so if gradients are zero, every z_i approaches the mean of all x_j. Where
// every rank sends to as many ranks as it hears, and all to equally many, every w_i stays 1.
//
// The graphs `ring` and `torus` are those of gossip.h. With `exponential`, rank i sends to i + 1, i + 2, i +
// 4 and so on. With `one-peer`, rank i sends to i + 2^(r mod ⌈log2 p⌉) in round r. One-peer sends |W| + 8
// bytes per step. If p is a power of two, log2 p rounds of it make the exact mean.
//
// The agreed model is the mean of all x_i, because the sum of all w_i stays p. Memory: three further ranges.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// Returns the ranks to which `rank` sends in a round, which counts from 0. All ranks have the same function,
// and no rank sends to itself.
using OutNeighbors = std::function<std::vector<int>(int rank, int64_t round)>;
// Returns the function of a graph: "ring", "torus", "exponential" or "one-peer".
OutNeighbors out_neighbors_of(const std::string& graph, int size);

// The exchange "sgp".
class Sgp final : public ReplicaStrategy {
 public:
  // Collective over the group. All ranks start with the same parameters. The group and the clock must outlive
  // this object.
  Sgp(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, OutNeighbors out,
      Group& group, const Clock& clock);

  // Returns disagreement, the present ‖z − mean‖ over all ranks, and least_weight, the smallest w.
  // Collective.
  StrategyStats strategy_stats() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return mean_over_ranks(sums_); }
  std::map<std::string, at::Tensor*> own_ranges() override { return {{"sum", &sums_}}; }
  at::Tensor own_values() override;
  void take_own_values(const at::Tensor& values) override;

 private:
  void push();

  OutNeighbors out_;
  at::Tensor sums_;  // x_i; the replica has z_i
  at::Tensor part_, heard_;
  double weight_ = 1;  // w_i
};

}  // namespace starling
