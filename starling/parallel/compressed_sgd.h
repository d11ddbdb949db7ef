// Synchronous SGD whose gradients travel in fewer bytes: every rank encodes its gradient (codec/), the messages reach all
// ranks, and all of them apply the same mean:
//
//   w ← w − lr · U( 1/p Σ_k decode(encode(g_k + r_k)) ),   r_k ← g_k + r_k − decode(encode(g_k + r_k))
//
// (Seide et al., 1-bit SGD, Interspeech 2014; error feedback r by codec, coded_mean.h.) The whole gradient is one message: it
// does not overlap with backward.
#pragma once

#include "starling/parallel/coded_mean.h"

namespace starling {

class CompressedSgd final : public ReplicaStrategy {
 public:
  // options.master must be float (codecs take fp32). Ranks stay bit-identical.
  CompressedSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                const CodecSpec& codec, Group& group, const Clock& clock)
      : ReplicaStrategy(factory, std::move(rule), options, group, clock), mean_(codec, replica_) {}

  // parameter_bytes, and those of CodedMean::tell.
  Fingerprint fingerprint() override {
    Fingerprint print = {{"parameter_bytes", static_cast<double>(replica_.bytes())}};
    mean_.tell(group_, print);
    return print;
  }

 protected:
  bool advance(StepReport& report) override {
    exchanging(report, [&] { mean_.apply(group_, replica_.gradients()); });
    replica_.update(step_);
    return true;
  }
  at::Tensor agreed() override { return replica_.parameters().clone(); }
  at::Tensor own_values() override { return mean_.state(); }
  void take_own_values(const at::Tensor& values) override { mean_.load_state(values); }

 private:
  CodedMean mean_;
};

}  // namespace starling
