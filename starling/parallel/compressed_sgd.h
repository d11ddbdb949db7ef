// Synchronous SGD whose gradients travel in fewer bytes: every rank encodes its gradient (codec/), the messages reach all
// ranks, and all of them apply the same mean:
//
//   w ← w − lr · U( 1/p Σ_k decode(encode(g_k + r_k)) ),   r_k ← g_k + r_k − decode(encode(g_k + r_k))
//
// (Seide et al., 1-bit SGD, Interspeech 2014; error feedback r by codec, codec/error_feedback.h.) Bytes: see
// codec/compressed_all_reduce.h. The whole gradient is one message: it does not overlap with backward.
#pragma once

#include <memory>
#include <optional>

#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/make_codec.h"
#include "starling/parallel/replica_strategy.h"

namespace starling {

class CompressedSgd final : public ReplicaStrategy {
 public:
  // options.master must be float (codecs take fp32). Ranks stay bit-identical.
  CompressedSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                const CodecSpec& codec, Group& group, const Clock& clock);

  // parameter_bytes; message_bytes (mean, of a rank and step), compression (the one over the other); residual_norm;
  // message_balance: the largest mean of any rank over the mean of all.
  Fingerprint fingerprint() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return replica_.parameters().clone(); }
  std::map<std::string, at::Tensor*> own_ranges() override;

 private:
  std::unique_ptr<Codec> codec_;
  std::optional<ErrorFeedback> feedback_;
  at::Tensor residual_;  // shows feedback_'s, for checkpoints
  ExchangeBuffers buffers_;
  double message_bytes_ = 0, steps_ = 0;
};

}  // namespace starling
