// CompressedAllReduce computes the mean of the ranks' arrays, which are sent as messages of a codec.
//
// A message of n values has b(n) bytes, p is the number of ranks, and every byte count is what one rank
// sends. The result is bit-identical on all ranks.
//
// Codecs whose decoded parts can be added (fp16, bf16, int8, 1bit, qsgd, terngrad), for p > 2. The range is
// cut into p parts. Rank r is the owner of part r. This is the exchange of 1-bit Adam (Tang et al., ICML
// 2021) and of BytePS:
//
//   every rank k:  m_kr = encode(v_k[r] + e_k[r]) to owner r,   e_k[r] := v_k[r] + e_k[r] − decode(m_kr).
//   owner r:       s_r = 1/p Σ_k decode(m_kr),   M_r = encode(s_r + f_r),   f_r := s_r + f_r − decode(M_r).
//   every rank:    v[r] = decode(M_r).                          2 (p − 1) b(n / p) bytes.
//
// e and f are error feedback (error_feedback.h), if the spec asks for it. Two ranks gather whole messages
// instead: an all-gather sends as many bytes and encodes once. M_r has a codec object of its own, so that
// each object encodes once per call. A codec whose state() is not empty sends whole messages, because
// checkpoints have one state per rank.
//
// A vote (signsgd) is made by the second encoding: M_r has the sign of s_r. Two ranks therefore also send
// parts.
//
// Codecs that encode each value by itself (fp16, bf16) gather their messages in pieces (gather_in_pieces.h),
// so that a rank adds, encodes and decodes while other pieces are on their way.
//
// Random decisions (random_codec.h) have the number of the call of apply() as their step, beginning at 1. The
// stream of the whole message of rank k is k. That of m_kr is 2 p r + k, and that of M_r is 2 p r + p + r.
//
// A warm-up (dgc) has the same step, at each rank and for each part (stepped_codec.h).
//
// Lists (threshold, prune, dgc): the sum of p lists is a list that is up to p times as long. It is not
// encoded again. The ranks tell each other the lengths of their messages, 8 bytes each. b is the longest one.
//
//   all-gather:             every rank gets and adds all messages.      (p − 1)(8 + b) bytes.
//   sparse reduce-scatter:  lists of parts go to their owners, and the owners' sums go to all ranks as fp32.
//                                                          (p − 1)(8 + 8 + b(n / p) + 4 n / p) bytes.
//
// The ranks choose the way that moves fewer bytes in each call, by the longest message. The second way moves
// fewer if the lists have more than about 4 n / (p − 1) bytes. prune then keeps its fraction of each part,
// and dgc keeps its fraction of each piece of a tensor in the part.
//
// lowrank as PCA: an all-gather of the factors, (p − 1) b bytes. none, random-k and lowrank as PowerSGD: the
// arrays of AveragingCodec are averaged by a reduce-scatter and an all-gather, 2 (p − 1)/p b bytes.
//
// lowrank+fp16 and lowrank+bf16 round the elements of these arrays on their way. R is the rounding, a_k is
// the array of rank k, and the array is cut into p parts of equal length. The bytes are 2 (p − 1)/p b, too:
//
//   every rank k:  R(a_k[r]) to owner r
//   owner r:       s_r = 1/p Σ_k R(a_k[r]),   R(s_r) to every rank
//
// Rank k contributes c_k = R(a_k) to the mean. In its own part, the owner adds p (R(s_r) − s_r), so that the
// result is the mean of all c_k, up to the rounding of fp32. Error feedback keeps what c_k lacks, so it
// covers both roundings.
//
// On several hosts with several ranks each, a group moves some of these bytes within a host. There the arrays
// of averaging codecs are all-reduced, unless they are rounded, which sends fewer bytes between hosts.
//
// If a momentum is given, lists and votes can have momentum correction (momentum_correction.h). The velocity
// then takes the place of v. With factor masking, the velocity becomes 0 where the rank's own message has a
// value.
//
// docs/reference/codecs.md has the table of bytes, and tests compare the table with Group::traffic().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/codec/codec_spec.h"
#include "starling/codec/error_feedback.h"
#include "starling/codec/momentum_correction.h"
#include "starling/comm/group.h"

namespace starling {

// Returns where part `part` of `count` values begins if the range is cut into `parts` parts. Parts meet at
// multiples of 16 values. Part `parts` begins at the end.
size_t part_begin(size_t count, int parts, int part);

// Returns the shapes of the values [begin, end) of a range that has these shapes. A tensor that is cut
// becomes a vector. If `shapes` is empty, the result is empty.
std::vector<TensorShape> shapes_between(const std::vector<TensorShape>& shapes, size_t begin, size_t end);

// The mean of one range over the ranks of a group, with the state of its codec. Not thread-safe.
class CompressedAllReduce {
 public:
  // Collective. count: the number of values of the range. shapes: its tensors, as for make_codec(). momentum:
  // used only if the spec has momentum correction. All ranks pass equal arguments. The group must outlive
  // this object. Errors: those of make_codec() and of the group.
  CompressedAllReduce(Group& group, const CodecSpec& spec, std::vector<TensorShape> shapes, size_t count,
                      double momentum = 0);

  // Replaces `data`, which has `count` values, by its mean over the ranks. Collective. Blocks.
  // Errors: CommError that names the rank whose message is not one of this codec; the errors of the group.
  void apply(std::span<float> data);

  // What this rank has sent so far, in bytes of payload (TrafficCount).
  uint64_t sent() const { return sent_; }
  // What this rank would have sent so far by all-reduces without a codec: 2 (p - 1)/p · 4 · count bytes each.
  double plain() const { return plain_; }
  // The number of calls of apply() in which ranks reduced parts of the range or arrays of an AveragingCodec.
  // In all other calls, every rank gathered the messages of all ranks.
  uint64_t scattered() const { return scattered_; }
  // The 2-norm of what this rank's error feedback holds, or nothing if there is none.
  std::optional<double> residual_norm() const;

  // Returns the state for a checkpoint. The state holds the codec's values, the residual e, the velocity, and
  // the residual f. Zeros fill up f to the length of the longest part. All ranks return equally many values.
  std::vector<float> state() const;
  // Loads a state. States of earlier versions lack f and the velocity; these values then become zeros.
  // Errors: Error(kCheckpoint) if the number of values does not fit.
  void load_state(std::span<const float> values);

 private:
  // One part of the range: its values are [begin, end).
  struct Part {
    size_t begin = 0, end = 0;
    std::unique_ptr<Codec> codec;
    size_t size() const { return end - begin; }
    std::span<float> of(std::span<float> range) const { return range.subspan(begin, size()); }
  };

  void advance();
  void set_step(Codec& codec, size_t part, bool second);
  void make_parts(const CodecSpec& spec, const std::vector<TensorShape>& shapes);
  size_t ranks() const { return static_cast<size_t>(group_.size()); }
  const Part& own_part() const { return parts_[static_cast<size_t>(group_.rank())]; }
  void average(std::span<float> data);
  void mean_of(std::span<float> array, std::span<float> own);
  void rounded_mean(Codec& rounding, std::span<float> array, std::span<float> own);
  void collect(std::span<float> data);
  void scatter_and_gather(std::span<float> data);
  bool lists_by_parts(size_t longest) const;
  void scatter_lists(std::span<float> data);
  void collect_in_pieces(std::span<float> data);
  void gather_means_in_pieces(std::span<float> data);
  std::vector<uint64_t> gather_sizes(size_t bytes);
  std::vector<size_t> gather_lengths(size_t bytes);
  void note_sent(std::span<const float> sent);

  Group& group_;
  const size_t count_;
  std::unique_ptr<Codec> whole_;                             // of the whole range
  std::vector<Part> parts_;                                  // one per rank; empty unless the range is cut
  std::unique_ptr<Codec> second_;                            // of the mean of the own part
  std::optional<ErrorFeedback> feedback_, second_feedback_;  // e, f
  std::optional<MomentumCorrection> correction_;             // u
  bool masked_ = false;                                      // whether the correction has factor masking
  bool by_parts_ = false;    // whether each rank has messages for parts in every call
  bool one_level_ = true;    // whether all ranks are on one host, or each on a host of its own
  size_t longest_part_ = 0;  // in values
  uint64_t sent_ = 0, scattered_ = 0;
  double plain_ = 0;
  std::vector<std::byte> own_, all_, piece_;  // messages, kept so that a step does not allocate
  std::vector<float> values_;                 // a range, or the parts of all ranks
};

}  // namespace starling
