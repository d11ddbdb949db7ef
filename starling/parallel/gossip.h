// Gossip: decentralized SGD without a server. In each step, every rank mixes its parameters with those of its
// neighbors and applies its own gradient:
//
//   x_i ← Σ_j W_ij x_j − lr · U(g_i(x_i))        W doubly stochastic, W_ij > 0 only for neighbors j → i
//
// (D-PSGD: Lian et al., arXiv 1705.09056.) The graphs are `ring` (two neighbors), `torus` (four neighbors on
// a near-square grid) and `exponential`. With `exponential`, rank i receives from i − 1, i − 2, i − 4, … (the
// static form of Assran et al., arXiv 1811.10792). All weights of a rank are equal: 1/(degree + 1).
//
// If gradients are zero, the distance to the mean shrinks by |λ₂(W)| per step. On 8 ranks it shrinks by 1/3 +
// 2/3 cos(2π/8) = 0.805 with `ring` and by 0.5 with `exponential`. A step sends degree · |W| bytes per rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// The graph that connects the ranks.
enum class GossipGraph { kRing, kTorus, kExponential };

// The neighbors of a rank, in ascending order and without the rank itself.
struct Neighbors {
  std::vector<int> hears;  // the ranks whose parameters this rank receives
  std::vector<int> tells;  // the ranks that receive this rank's parameters
};
// Returns the graph of exchange.graph: "ring", "torus" or "exponential".
GossipGraph gossip_graph(std::string_view name);
// The steps between two collectives in which decentralized ranks average the loss and agree whether to stop.
inline constexpr int64_t kStepsBetweenAgreements = 32;
// Returns the neighbors of `rank` among `size` ranks.
Neighbors neighbors_of(GossipGraph graph, int rank, int size);

// Returns the mixing matrix W, size × size, in row-major order.
std::vector<double> mixing_matrix(GossipGraph graph, int size);
// Returns the modulus of the second largest eigenvalue of W. It is the largest modulus among all eigenvalues
// of W − 1/p, which at::linalg_eigvals computes. W need not be symmetric or circulant.
double second_eigenvalue(const std::vector<double>& matrix, int size);

// The exchange "gossip".
class Gossip final : public ReplicaStrategy {
 public:
  // Collective over the group. All ranks start with the same parameters. The group and the clock must outlive
  // this object.
  Gossip(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, GossipGraph graph,
         Group& group, const Clock& clock);

  // Returns degree, second_eigenvalue and disagreement, the present ‖x_i − mean‖ over all ranks. Collective.
  StrategyStats strategy_stats() override;

  // Mixes parameters once, without a gradient step. Every rank of the group must call it.
  void mix();

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return mean_over_ranks(replica_.parameters()); }

 private:
  GossipGraph graph_;
  Neighbors neighbors_;
  at::Tensor heard_;
};

}  // namespace starling
