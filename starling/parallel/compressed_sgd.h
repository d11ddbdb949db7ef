// Synchronous SGD with compressed gradients. Each rank encodes its gradient (codec/), the messages reach all
// ranks, and all ranks apply the same mean:
//
//   w ← w − lr · U( 1/p Σ_k decode(encode(g_k + r_k)) ),   r_k ← g_k + r_k − decode(encode(g_k + r_k))
//
// (Seide et al., 1-bit SGD, Interspeech 2014. The codec decides whether there is error feedback r:
// replica/coded_mean.h. With more than two ranks, codecs whose decoded parts can be added encode this mean
// again: codec/compressed_all_reduce.h.) The exchange begins after backward, so the two do not overlap.
//
// Momentum correction (Lin et al., "Deep Gradient Compression", ICLR 2018; codec/momentum_correction.h). If
// the codec's spec asks for it, each rank applies SGD's momentum m and weight decay λ before it encodes. U is
// then SGD without both. Each rank clips its own gradient, to √p times the limit of their mean:
//
//   u_k ← m u_k + clip(g_k) + λ w,   w ← w − lr · 1/p Σ_k decode(encode(u_k + r_k)),
//   r_k ← u_k + r_k − decode(encode(u_k + r_k)),   u_k ← 0 where rank k has sent a value
//
// SIGNUM (Bernstein et al., "signSGD with majority vote is communication efficient and fault tolerant", ICLR
// 2019, algorithm 1) is the correction of a codec without factor masking. U is SGD without momentum, and
// keeps the weight decay:
//
//   u_k ← m u_k + clip(g_k),   w ← w − lr · (vote of all sign(u_k) + λ w)
#pragma once

#include <cmath>

#include "starling/parallel/replica/coded_mean.h"

namespace starling {

// The exchange "all-reduce" with a codec.
class CompressedSgd final : public ReplicaStrategy {
 public:
  // options.master must be float, because codecs take fp32. Replicas stay bit-identical.
  CompressedSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                const CodecSpec& codec, Group& group, const Clock& clock)
      : CompressedSgd(factory, std::move(rule), options, codec, Correction{}, group, clock) {}

  // What momentum correction needs of the optimizer.
  struct Correction {
    double momentum = 0;          // 0: no correction
    double weight_decay = 0;      // that each rank applies before it encodes; 0 without factor masking
    bool exempt_vectors = false;  // parameters of one dimension have no such weight decay
  };
  // With momentum correction, `rule` is SGD without momentum. With factor masking it has no weight decay
  // either.
  CompressedSgd(const ModelFactory& factory, UpdateRule rule, FlatReplicaOptions options,
                const CodecSpec& codec, const Correction& correction, Group& group, const Clock& clock)
      : ReplicaStrategy(factory, std::move(rule), own_options(options, codec, correction, group), group,
                        clock),
        mean_(codec, replica_, group, correction.momentum),
        correction_(correction),
        clip_norm_(options.clip_norm * std::sqrt(group.size())) {}

  // Returns parameter_bytes and the statistics of CodedMean::tell.
  StrategyStats strategy_stats() override {
    StrategyStats stats = {{"parameter_bytes", static_cast<double>(replica_.bytes())}};
    mean_.tell(stats);
    return stats;
  }

 protected:
  bool averages_gradients() const override { return true; }
  void exchange_gradients(bool /*whole*/) override {
    // Afterwards no rank can tell whose gradient was not finite.
    if (!replica_.options().own_gradients) replica_.check_gradients(step_.index);
    if (correction_.momentum > 0) prepare();
    mean_.apply(replica_.gradients());
  }
  bool advance(StepReport&) override {
    replica_.update(step_);
    return true;
  }
  at::Tensor agreed() override { return replica_.parameters().clone(); }
  at::Tensor own_values() override { return mean_.state(); }
  void take_own_values(const at::Tensor& values) override { mean_.load_state(values); }

 private:
  static FlatReplicaOptions own_options(FlatReplicaOptions options, const CodecSpec& codec,
                                        const Correction& correction, Group& group) {
    options.updates_with =
        codec.kind == CodecKind::kFp16
            ? "what codec fp16, whose largest number is 65504 (that of bf16 is 3e38), makes "
              "of the gradient of"
            : "what the codec makes of the gradient of";
    if (correction.momentum > 0) options.clip_norm = 0;
    options.mean_over = &group;
    return options;
  }
  void prepare() {
    at::NoGradGuard no_grad;
    at::Tensor& g = replica_.gradients();
    const double norm = clip_norm_ > 0 ? std::sqrt(replica_.squares(g)) : 0;
    if (norm > clip_norm_) g.mul_(clip_norm_ / (norm + 1e-6));
    if (correction_.weight_decay > 0) decay(g);
  }
  void decay(at::Tensor& g) {
    if (!correction_.exempt_vectors) {
      g.add_(replica_.parameters(), correction_.weight_decay);
      return;
    }
    for (size_t i = 0; i < replica_.sizes().size(); ++i) {
      if (replica_.replica().parameters[i].tensor.dim() <= 1) continue;
      const auto begin = static_cast<int64_t>(replica_.layout().offset[i]);
      const auto count = static_cast<int64_t>(replica_.sizes()[i]);
      g.narrow(0, begin, count).add_(replica_.parameters().narrow(0, begin, count), correction_.weight_decay);
    }
  }

  CodedMean mean_;
  Correction correction_;
  double clip_norm_;
};

// Returns the momentum and the weight decay that momentum correction takes from the optimizer. Both are 0
// unless the codec's spec asks for the correction and the optimizer is sgd. Without factor masking, the
// weight decay is 0.
CompressedSgd::Correction correction_of(const RunSpec& spec, const CodecSpec& codec);

}  // namespace starling
