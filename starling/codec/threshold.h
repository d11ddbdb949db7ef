// ThresholdCodec sends only elements beyond ±tau, each as its index and its sign. The receiver decodes ±tau
// for them. Strom: "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015.
//
//   x > tau -> +tau,   x < -tau -> -tau,   else nothing.
//   message: count k (u32), tau (fp32), k numbers 2 (gap - 1) + sign as varints.
//   sign = 1 for a negative value, else 0.
//   gap = distance to the element sent before, from -1 for the first.
//   bytes(n) = 8 + k + (gaps > 64) + (gaps > 8192) + …, at most 8 + n.
//   The bytes are variable: encode returns the exact number.
//
// Unsent values, and the excess over tau, go to ErrorFeedback. Without error feedback, elements within ±tau
// are never sent. A sent element changes by at most tau per step, so choose tau near the size of typical
// large gradients.
//
// If any element is NaN or infinite, the message has tau = NaN and k = 0, and all elements decode to NaN.
#pragma once

#include "starling/codec/codec.h"

namespace starling {

// Codec "threshold". The top of this header has the format.
class ThresholdCodec : public Codec {
 public:
  // tau: the threshold, above 0.
  explicit ThresholdCodec(float tau) : tau_(tau) {}
  std::string name() const override { return "threshold"; }
  bool fixed_rate() const override { return false; }
  Combining combining() const override { return Combining::kMerged; }
  // This bound holds because a gap takes at most as many bytes as it has elements.
  size_t encoded_bytes(size_t count) const override { return 8 + count; }
  // Encodes at most 2^32 - 1 values.
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;

 private:
  float tau_;
};

}  // namespace starling
