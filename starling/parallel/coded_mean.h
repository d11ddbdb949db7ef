// CodedMean: the mean over the ranks of a flat range that travels through a codec, with what the codec carries from one time
// to the next (error feedback, Q of PowerSGD) and what it cost.
//
//   v ← 1/p Σ_k decode(encode(v_k + r_k)),   r_k ← v_k + r_k − decode(encode(v_k + r_k))
//
// The error feedback r is there where the codec's spec says so (codec/error_feedback.h); bytes: codec/compressed_all_reduce.h.
#pragma once

#include <memory>
#include <optional>

#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/make_codec.h"
#include "starling/parallel/replica_strategy.h"

namespace starling {

class CodedMean {
 public:
  // For ranges of the replica's layout, fp32; the codec sees its tensors as matrices, the first dimension against the rest.
  CodedMean(const CodecSpec& spec, FlatReplica& replica);

  // Collective. `flat` becomes the mean, bit-identical on all ranks.
  void apply(Group& group, at::Tensor& flat);

  // What a checkpoint keeps, one dimension; undefined where there is nothing.
  at::Tensor state() const;
  // Errors: Error(kCheckpoint) where it has another length.
  void load_state(const at::Tensor& state);

  // Collective. message_bytes (mean, of a rank and time), compression (bytes of the range over it), message_balance (the largest
  // mean of any rank over the mean of all), residual_norm (with error feedback; of this rank).
  void tell(Group& group, Fingerprint& print) const;

 private:
  std::unique_ptr<Codec> codec_;
  std::optional<ErrorFeedback> feedback_;
  ExchangeBuffers buffers_;
  double range_bytes_ = 0, message_bytes_ = 0, times_ = 0;
};

}  // namespace starling
