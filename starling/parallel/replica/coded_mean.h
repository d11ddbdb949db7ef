// CodedMean computes the mean over the ranks of a flat range that is sent through a codec. It keeps the
// codec's state between applications (error feedback, Q of PowerSGD) and counts the bytes.
//
//   v ← 1/p Σ_k decode(encode(v_k + r_k)),   r_k ← v_k + r_k − decode(encode(v_k + r_k))
//
// There is error feedback r only if the codec's spec asks for it (codec/error_feedback.h). Codecs whose
// decoded parts can be added encode the mean once more. codec/compressed_all_reduce.h has the equations and
// the number of bytes.
#pragma once

#include "starling/codec/compressed_all_reduce.h"
#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// The mean of one flat range over the ranks of a group. Not thread-safe.
class CodedMean {
 public:
  // Collective. The ranges are fp32 and have the replica's layout. The codec sees each tensor as a matrix:
  // the first dimension gives the rows, and all other dimensions together give the columns. The group must
  // outlive this object. momentum: that of the velocity of codec/momentum_correction.h, if the spec has it.
  CodedMean(const CodecSpec& spec, FlatReplica& replica, Group& group, double momentum = 0);

  // Replaces `flat` by the mean, which is bit-identical on all ranks. Collective.
  void apply(at::Tensor& flat);

  // Returns the state for a checkpoint as a tensor of one dimension, or an undefined tensor if there is no
  // state.
  at::Tensor state() const;
  // Loads a state. Errors: Error(kCheckpoint) if its length does not fit.
  void load_state(const at::Tensor& state);

  // Adds these statistics to `stats`. Collective. The statistics of tell_messages() are those of an
  // application, by Group::traffic(). Without a codec an all-reduce sends 2 (p − 1)/p · |W|. The statistics
  // include the warm-up of dgc, which sends more than later steps do.
  // by_reduce_scatter is the share of the applications that CompressedAllReduce::scattered() counts.
  // residual_norm is the norm of this rank's error feedback, if any.
  void tell(StrategyStats& stats) const;

 private:
  Group& group_;
  CompressedAllReduce all_reduce_;
  double times_ = 0;
};

}  // namespace starling
