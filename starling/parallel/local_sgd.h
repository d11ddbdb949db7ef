// Local SGD: each rank trains by itself, and every H steps all ranks take the mean of their parameters.
//
//   x_k ← x_k − lr · U(g_k(x_k))        each step
//   x_k ← 1/p Σ_j x_j                   every H-th step
//
// With a codec, each rank sends how far its parameters have moved since the last synchronization round. There
// is error feedback r if the codec's spec asks for it. z is the result of the last round, initially x:
//
//   z ← z + 1/p Σ_j decode(encode(x_j − z + r_j)),   x_k ← z
//
// The agreed parameters may have an optimizer of their own, whose gradient is the opposite of d. Δ is 0 at
// first, η is the block momentum and α the outer rate. With a codec, the mean is that of the messages:
//
//   d = 1/p Σ_j x_j − z,   Δ ← η Δ + d
//   z ← z + α Δ             classical; with Nesterov's momentum z ← z + α (d + η Δ)
//   x_k ← z
//
// With α = 1 this is BMUF with classical block momentum (ζ = 1). Source: Chen, Huo, "Scalable training of
// deep learning machines by incremental block training with intra-block parallel optimization and blockwise
// model-update filtering", ICASSP 2016. With adamw in each rank, Nesterov's momentum and many steps per round
// it is DiLoCo (Douillard et al., arXiv 2311.08105).
//
// Post-local SGD (Lin, Stich, Patel, Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020) ends
// each of the first steps with a round, and only then lets ranks train alone for H steps.
//
// (Stich, "Local SGD Converges Fast and Communicates Little", arXiv 1805.09767.) H = 1 with plain SGD is
// synchronous SGD. Each rank keeps its own optimizer states. A round sends 2 (p − 1)/p · |W| bytes per rank;
// codec/compressed_all_reduce.h has the bytes with a codec.
//
// Averaging too rarely fails, because the mean of different minima need not be a minimum. The strategy
// statistics show this failure: they have the mean loss of the ranks' batches just before and just after
// averaging.
#pragma once

#include <optional>

#include "starling/parallel/replica/coded_mean.h"

namespace starling {

// How a round moves the agreed parameters.
struct OuterStep {
  double momentum = 0;    // η, from 0 (none) to below 1
  double lr = 1;          // α, above 0
  bool nesterov = false;  // Nesterov's momentum in place of the classical one
};

// The exchange "local-sgd".
class LocalSgd final : public ReplicaStrategy {
 public:
  // Collective over the group. every: H, at least 1. codec: compresses what a round sends; any codec but none
  // requires fp32. local_from: steps up to this one end with a round each. The group and the clock must
  // outlive this object.
  LocalSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, int64_t every,
           Group& group, const Clock& clock, const CodecSpec& codec = {}, const OuterStep& outer = {},
           int64_t local_from = 0);

  // Returns rounds, every, loss_before_averaging and loss_after_averaging (means over the measured rounds and
  // over the ranks). The two losses are missing if no round was measured. With a codec the map also has the
  // statistics of CodedMean::tell, one application per round.
  StrategyStats strategy_stats() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return mean_over_ranks(replica_.parameters()); }
  std::map<std::string, at::Tensor*> own_ranges() override;
  at::Tensor own_values() override { return coded_ ? coded_->state() : at::Tensor(); }
  void take_own_values(const at::Tensor& values) override { coded_->load_state(values); }

 private:
  void average();
  void measured_average(StepReport& report);

  int64_t every_;
  std::optional<CodedMean> coded_;
  OuterStep outer_;
  int64_t local_from_;
  at::Tensor last_;   // z; only with a codec or an outer step
  at::Tensor delta_;  // Δ; only with an outer momentum
  double rounds_ = 0, measured_ = 0, before_ = 0, after_ = 0;
};

}  // namespace starling
