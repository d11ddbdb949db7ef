// fp16: IEEE half precision, rounded to nearest even. The "16-bit float parameters" of the seed's list of lossy directions.
//
//   bytes(n) = 2 n                                                    fixed rate, exact
//   |x - decoded| <= 2^-11 |x| for 2^-14 <= |x| <= 65504, <= 2^-25 below; infinity from 65520 on; NaN stays NaN
#pragma once

#include <cstdint>

#include "starling/codec/codec.h"

namespace starling {

class Fp16Codec : public Codec {
 public:
  std::string name() const override { return "fp16"; }
  bool fixed_rate() const override { return true; }
  size_t encoded_bytes(size_t count) const override { return 2 * count; }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;
};

// The conversions without branches, for loops that a compiler vectorises. Subnormal numbers are exact both ways.
inline float fp32_of_fp16(uint16_t half) {
  constexpr uint32_t kExponent = 0x0f800000u;  // the five bits, at the place they have in an fp32
  const uint32_t shifted = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const uint32_t exponent = shifted & kExponent;
  const uint32_t normal = shifted + (exponent == kExponent ? 224u << 23 : 112u << 23);
  const float subnormal =
      __builtin_bit_cast(float, shifted + (113u << 23)) - __builtin_bit_cast(float, 113u << 23);
  const uint32_t magnitude = exponent == 0 ? __builtin_bit_cast(uint32_t, subnormal) : normal;
  return __builtin_bit_cast(float, magnitude | static_cast<uint32_t>(half & 0x8000u) << 16);
}

inline uint16_t fp16_of_fp32(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // Adding 0.5 puts the ten bits of a subnormal half at the bottom, rounded.
  const float aligned = __builtin_bit_cast(float, magnitude < 0x38800000u ? magnitude : 0u) + 0.5f;
  const uint32_t tiny = __builtin_bit_cast(uint32_t, aligned) - 0x3f000000u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t half = magnitude < 0x38800000u ? tiny : normal;
  half = magnitude >= 0x47800000u ? large : half;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}

}  // namespace starling
