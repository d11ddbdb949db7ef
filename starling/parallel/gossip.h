// Gossip: decentralised SGD without a server. Each step every rank mixes its parameters with its neighbours' and takes its own
// gradient step:
//
//   x_i ← Σ_j W_ij x_j − lr · U(g_i(x_i))        W doubly stochastic, W_ij > 0 only for neighbours j → i
//
// (D-PSGD: Lian et al., arXiv 1705.09056.) Graphs: `ring` (both sides), `torus` (four sides of a near-square grid),
// `exponential` (i hears i − 1, i − 2, i − 4, …; static, Assran et al., arXiv 1811.10792). All weights of a rank are equal:
// 1/(degree + 1). With gradients off, the distance to the mean shrinks by |λ₂(W)| a step: ring of 8: 1/3 + 2/3 cos(2π/8) =
// 0.805; exponential of 8: 0.5. A step sends degree · |W| bytes a rank.
#pragma once

#include <string>
#include <vector>

#include "starling/parallel/replica_strategy.h"

namespace starling {

enum class GossipGraph { kRing, kTorus, kExponential };

// The ranks that `rank` hears (its in-neighbours), ascending, without itself; and those that hear it.
struct Neighbours {
  std::vector<int> hears;
  std::vector<int> tells;
};
Neighbours neighbours_of(GossipGraph graph, int rank, int size);

// Row-major p × p mixing matrix W, and the modulus of its second largest eigenvalue (circulant or not; by power iteration on
// W − 1/p).
std::vector<double> mixing_matrix(GossipGraph graph, int size);
double second_eigenvalue(const std::vector<double>& matrix, int size);

class Gossip final : public ReplicaStrategy {
 public:
  Gossip(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, GossipGraph graph,
         Group& group, const Clock& clock);

  // degree, second_eigenvalue, disagreement (‖x_i − mean‖ over all ranks, now).
  Fingerprint fingerprint() override;

  // One mixing step alone (gradients off). Collective.
  void mix();

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return mean_over_ranks(replica_.parameters()); }

 private:
  GossipGraph graph_;
  Neighbours neighbours_;
  at::Tensor heard_;
};

}  // namespace starling
