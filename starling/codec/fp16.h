// Fp16Codec writes each value in IEEE half precision, rounded to nearest even.
//
//   bytes(n) = 2 n.                                      Fixed rate, exact.
//   |x - decoded| <= 2^-11 |x| for 2^-14 <= |x| <= 65504.
//   |x - decoded| <= 2^-25     for |x| < 2^-14.
//
// Values of magnitude 65520 or more become infinity. NaN stays NaN.
#pragma once

#include <cstdint>

#include "starling/codec/codec.h"

namespace starling {

// Codec "fp16". The top of this header has the format.
class Fp16Codec : public Codec {
 public:
  std::string name() const override { return "fp16"; }
  bool fixed_rate() const override { return true; }
  bool elementwise() const override { return true; }
  Combining combining() const override { return Combining::kAdded; }
  size_t encoded_bytes(size_t count) const override { return 2 * count; }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override;
  void decode(std::span<const std::byte> in, std::span<float> out) const override;
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override;
};

// Converts a half-precision number to fp32 without branches, so that the compiler vectorizes loops of it. The
// result is exact for subnormal numbers too.
inline float fp32_of_fp16(uint16_t half) {
  constexpr uint32_t kExponent = 0x0f800000u;  // the five bits of the exponent, at their place in an fp32
  const uint32_t shifted = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const uint32_t exponent = shifted & kExponent;
  const uint32_t normal = shifted + (exponent == kExponent ? 224u << 23 : 112u << 23);
  const float subnormal =
      __builtin_bit_cast(float, shifted + (113u << 23)) - __builtin_bit_cast(float, 113u << 23);
  const uint32_t magnitude = exponent == 0 ? __builtin_bit_cast(uint32_t, subnormal) : normal;
  return __builtin_bit_cast(float, magnitude | static_cast<uint32_t>(half & 0x8000u) << 16);
}

// Converts an fp32 to half precision without branches, so that the compiler vectorizes loops of it. The
// result is rounded to nearest even for subnormal numbers too.
inline uint16_t fp16_of_fp32(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // Adding 0.5 rounds the ten bits of a subnormal half and moves them to the bottom.
  const float aligned = __builtin_bit_cast(float, magnitude < 0x38800000u ? magnitude : 0u) + 0.5f;
  const uint32_t tiny = __builtin_bit_cast(uint32_t, aligned) - 0x3f000000u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t half = magnitude < 0x38800000u ? tiny : normal;
  half = magnitude >= 0x47800000u ? large : half;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}

}  // namespace starling
