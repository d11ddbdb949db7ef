// ErrorFeedback: what a codec dropped in one step is added to the next step's input, so that nothing is lost, only late.
// Seide et al. 2014 (1-bit SGD); Karimireddy, Rebjock, Stich, Jaggi: "Error feedback fixes SignSGD and other gradient
// compression schemes", ICML 2019.
//
//   x = g + r;   send encode(x);   r := x - decode(encode(x))            (r = 0 at first)
//
// so after t steps the decoded sum is the sum of g minus r. One for each range that a rank encodes; its residual belongs
// into checkpoints, by mesh coordinate. An element of the residual that is not finite becomes 0: a NaN is reported once,
// by what was sent, and does not stay for ever.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "starling/codec/codec.h"

namespace starling {

// Not thread-safe. Memory: count floats.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(size_t count) : residual_(count, 0.0f) {}

  // Encodes gradient + residual into `out` (as Codec::encode) and keeps what the message lacks. Returns its bytes.
  size_t encode(Codec& codec, std::span<const float> gradient, std::span<std::byte> out);

  // The same in two halves, for codecs that average (codec.h): begin makes data = data + residual; end is given what was
  // contributed of that.
  void begin(std::span<float> data);
  void end(std::span<const float> contributed);

  std::span<const float> residual() const { return residual_; }
  // {"residual": count values}.
  CodecState state() const;
  // Errors: Error(kCheckpoint) where there is no residual of this length.
  void load_state(const CodecState& state);

 private:
  void check_count(size_t count) const;
  void drop_not_finite();
  std::vector<float> residual_;
};

}  // namespace starling
