// Local SGD: every rank trains by itself; every H steps all of them take the mean of their parameters.
//
//   x_k ← x_k − lr · U(g_k(x_k))        each step
//   x_k ← 1/p Σ_j x_j                   every H-th step
//
// With a codec what travels is what a rank has moved since the last round, with error feedback where the codec wants it:
//
//   z ← z + 1/p Σ_j decode(encode(x_j − z + r_j)),   x_k ← z            (z: the last round's result, the initial values at first)
//
// (Stich, "Local SGD Converges Fast and Communicates Little", arXiv 1805.09767.) H = 1 with plain SGD is synchronous SGD. The
// optimizer's states stay each rank's own. A round sends 2 (p − 1)/p · |W| bytes a rank; coded: codec/compressed_all_reduce.h.
// Averaging too late fails: the mean of different minima need not be a minimum. The fingerprint shows it: the mean loss of the
// ranks' batches just before and just after averaging.
#pragma once

#include <optional>

#include "starling/parallel/coded_mean.h"

namespace starling {

class LocalSgd final : public ReplicaStrategy {
 public:
  // every: H, at least 1. codec: of what travels in a round; other than none it takes fp32.
  LocalSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, int64_t every,
           Group& group, const Clock& clock, const CodecSpec& codec = {});

  // rounds, every, loss_before_averaging, loss_after_averaging (means over the measured rounds and the ranks); with a codec
  // those of CodedMean::tell, a round being a time.
  Fingerprint fingerprint() override;

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
  at::Tensor last_;  // z; with a codec
  double rounds_ = 0, measured_ = 0, before_ = 0, after_ = 0;
};

}  // namespace starling
