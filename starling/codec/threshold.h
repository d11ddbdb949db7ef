// threshold: only elements beyond ±tau travel, each as its index and its sign, and stand for ±tau. Strom: "Scalable
// distributed DNN training using commodity GPU cloud computing", Interspeech 2015.
//
//   x > tau -> +tau,   x < -tau -> -tau,   else nothing
//   message: count k (u32), tau (fp32), k numbers 2 (gap - 1) + (negative ? 1 : 0) as varints, where gap is the distance to
//            the element sent before (from -1 for the first)
//   bytes(n) = 8 + k + (gaps > 64) + (gaps > 8192) + …, at most 8 + n             variable: encode returns the exact number
// What is not sent, and what is beyond tau in what is, is for ErrorFeedback: without it small gradients never arrive. A sent
// element moves by tau a step at most, so choose tau near the size of typical large gradients.
// Where any element is NaN or infinite the message is that of tau = NaN and k = 0: all elements decode to NaN.
#pragma once

#include "starling/codec/codec.h"

namespace starling {

class ThresholdCodec : public Codec {
 public:
  explicit ThresholdCodec(float tau) : tau_(tau) {}
  std::string name() const override { return "threshold"; }
  bool fixed_rate() const override { return false; }
  // A gap takes no more bytes than it has elements.
  size_t encoded_bytes(size_t count) const override { return 8 + count; }
  // At most 2^32 - 1 values.
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;

 private:
  float tau_;
};

}  // namespace starling
