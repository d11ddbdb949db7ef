// CodedReduceScatter sends the ranks' gradients to the owners of their parts as messages of a codec. ZeRO
// stages 1 and 2 use it in place of a reduce-scatter (parallel/zero/zero_unit.h).
//
// A range of n values is cut into p equal parts, and rank r is the owner of part r. This is the first half of
// the exchange of 1-bit Adam (Tang et al., ICML 2021) and the gradient exchange qgZ of ZeRO++ (Wang et al.
// 2023, arXiv 2306.10209) with one hop. A message of m values has b(m) bytes. e is error feedback
// (error_feedback.h), which there is if the spec asks for it.
//
//   every rank k:  m_kr = encode(v_k[r] + e_k[r]) to owner r,   e_k[r] := v_k[r] + e_k[r] − decode(m_kr).
//   owner r:       s_r = 1/p Σ_k decode(m_kr).
//
// A rank sends (p − 1) b(n / p) bytes. The owner keeps s_r as it is. So nothing is encoded twice, and there
// is no second residual. The owner sends its own part through the codec, too, so that every gradient has the
// same error. The codec decides the rest (codec.h):
//
//   kAdded      The equations above.
//   kVoted      The owner makes the vote: it encodes and decodes s_r + f_r. f is a residual of the owner, if
//               the spec asks for error feedback.
//   kMerged     The equations above. Each list keeps its fraction of a part.
//   kAveraged   The equations above, if messages need no state (none, random-k). random-k draws the positions
//               of each part.
//   kCollected, and a codec whose state() is not empty and is no step (lowrank as PowerSGD): Messages stand
//               for the whole range. CompressedAllReduce computes the mean with its bytes, and the owner
//               keeps its part.
//
// If the lengths of messages vary, the ranks tell each other the lengths first, in 8 bytes each. There is no
// momentum before the codec (momentum_correction.h).
//
// Random decisions (random_codec.h) have the seed key_of(seed, range, r) for part r, and key_of(seed, range,
// p) for a whole range. The streams are k for m_kr, and p for the vote of owner r.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/codec/codec_spec.h"
#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/error_feedback.h"
#include "starling/comm/group.h"

namespace starling {

// A reduce-scatter of one range over the ranks of a group, with the state of its codec. Not thread-safe.
// Memory: `count` floats per rank for error feedback, and the messages.
class CodedReduceScatter {
 public:
  // Collective. count: the number of values of the range, a multiple of the number of ranks. shapes: its
  // tensors, as for make_codec(). range: the number of the range among those that are reduced in a step. All
  // ranks pass equal arguments. The group must outlive this object.
  // Errors: those of make_codec() and of the group.
  CodedReduceScatter(Group& group, const CodecSpec& spec, const std::vector<TensorShape>& shapes,
                     size_t count, uint64_t range);

  // Writes the mean over the ranks of this rank's part of `data` to `mean`, which has count / p values.
  // `data` has `count` values, which have no meaning afterwards. step: of the training, beginning at 1 and
  // equal on all ranks. Collective. Blocks. Errors: CommError that names the rank whose message is not one of
  // this codec; the errors of the group.
  void apply(uint64_t step, std::span<float> data, std::span<float> mean);

  // What this rank has sent so far, in bytes of payload (TrafficCount).
  uint64_t sent() const { return sent_; }
  // The number of calls of apply() so far.
  uint64_t times() const { return times_; }
  // The bytes that a rank sends in a call by the formulas above, as the mean over the ranks. The number is
  // exact for messages of parts that have a fixed rate. For all other messages it is a bound, without the few
  // bytes by which the arrays of an average are filled up.
  double formula() const;
  // The bytes that this rank keeps between two calls: residuals and the state of the codec.
  size_t kept_bytes() const { return sizeof(float) * state_size(); }
  // The 2-norm of what this rank's error feedback holds, or nothing if there is none.
  std::optional<double> residual_norm() const;

  // The number of values of state(). It is equal on all ranks, and 0 if the codec keeps nothing.
  size_t state_size() const { return state().size(); }
  // Returns the state for a checkpoint: the number of ranks and of values, and what the codec keeps.
  std::vector<float> state() const;
  // Loads a state. Errors: Error(kCheckpoint) if it belongs to another number of ranks, range or codec.
  void load_state(std::span<const float> values);

 private:
  size_t ranks() const { return static_cast<size_t>(group_.size()); }
  size_t own() const { return static_cast<size_t>(group_.rank()); }
  std::span<float> part_of(std::span<float> data, size_t part) const {
    return data.subspan(part * share_, share_);
  }
  void set_step(Codec& codec, uint64_t step, uint64_t stream) const;
  std::vector<size_t> encode_parts(uint64_t step, std::span<float> data);
  std::vector<size_t> lengths_for_own_part(const std::vector<size_t>& sent);
  void vote(uint64_t step, std::span<float> mean);
  std::vector<float> kept() const;

  Group& group_;
  const size_t count_, share_;                               // of the range, of a part; in values
  std::vector<std::unique_ptr<Codec>> parts_;                // by owner; empty if whole_ is set
  std::unique_ptr<CompressedAllReduce> whole_;               // of messages that stand for the whole range
  std::unique_ptr<Codec> vote_;                              // of this rank's part; null: there is no vote
  std::optional<ErrorFeedback> feedback_, second_feedback_;  // e, f
  std::string name_;                                         // of the codec
  double whole_formula_ = 0;
  uint64_t sent_ = 0, times_ = 0;
  std::vector<std::byte> own_, all_;  // messages, kept so that a step does not allocate
};

}  // namespace starling
