// Bf16Codec writes each value as bf16: the upper half of an fp32, rounded to nearest even. bf16 has the range
// of fp32 and 8 significant bits.
//
//   bytes(n) = 2 n.                                      Fixed rate, exact.
//   |x - decoded| <= 2^-8 |x| for |x| >= 2^-126.
//
// A value that rounds beyond the largest number becomes infinity. NaN stays NaN.
#pragma once

#include "starling/codec/codec.h"

namespace starling {

// Codec "bf16". The top of this header has the format.
class Bf16Codec : public Codec {
 public:
  std::string name() const override { return "bf16"; }
  bool fixed_rate() const override { return true; }
  bool elementwise() const override { return true; }
  Combining combining() const override { return Combining::kAdded; }
  size_t encoded_bytes(size_t count) const override { return 2 * count; }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;
};

}  // namespace starling
