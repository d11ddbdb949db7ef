// ErrorFeedback adds what a codec dropped in one step to the input of the next step. Nothing is lost, only
// delayed. Seide et al. 2014 (1-bit SGD); Karimireddy, Rebjock, Stich, Jaggi: "Error feedback fixes SignSGD
// and other gradient compression schemes", ICML 2019.
//
//   x = g + r;   send encode(x);   r := x - decode(encode(x))            (r = 0 at first)
//
// After t steps the decoded sum is therefore the sum of all g minus r. Each range that a rank encodes needs
// an ErrorFeedback of its own. A checkpoint must keep the residual of every rank.
//
// An element of the residual that is not finite becomes 0. A NaN thus reaches the receiver once, in the
// message, and does not stay in the residual.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "starling/codec/codec.h"

namespace starling {

// Holds the residual of one range. Not thread-safe. Memory: count floats.
class ErrorFeedback {
 public:
  // count: the number of values of the range. The residual begins as zeros.
  explicit ErrorFeedback(size_t count) : residual_(count, 0.0f) {}

  // Encodes gradient + residual into `out` like Codec::encode and keeps what the message lacks. Returns the
  // length of the message.
  size_t encode(Codec& codec, std::span<const float> gradient, std::span<std::byte> out);

  // Like encode() for the values that begin at element `offset` of the range. A range is encoded in parts if
  // each part has a message of its own.
  size_t encode_part(Codec& codec, size_t offset, std::span<const float> gradient, std::span<std::byte> out);

  // The first half of encode(), for callers that encode by themselves: replaces `data` by data + residual.
  void begin(std::span<float> data);
  // The second half: the residual becomes data + residual minus `contributed`, the values that receivers get
  // from this rank.
  void end(std::span<const float> contributed);

  // Returns the residual. The span is valid for the lifetime of this object.
  std::span<const float> residual() const { return residual_; }
  // Returns {"residual": count values}.
  CodecState state() const;
  // Restores the residual. Errors: Error(kCheckpoint) if `state` has no residual of this length.
  void load_state(const CodecState& state);

 private:
  void check_count(size_t count) const;
  std::vector<float> residual_;
};

}  // namespace starling
