// bfloat16 as a plain value: the upper half of an fp32. Layout-compatible with at::BFloat16.
#pragma once

#include <cstdint>

#include "starling/base/isa_dispatch.h"

namespace starling {

struct Bf16 {
  uint16_t bits = 0;
};

// Both functions are inlined always, so that they take the instruction set of the loop around them.
STARLING_INLINE float to_fp32(Bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

// Rounds to nearest, ties to even; every NaN becomes 0x7fc0, as in PyTorch.
STARLING_INLINE Bf16 to_bf16(float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  return Bf16{static_cast<uint16_t>(nan ? 0x7fc0u : rounded)};
}

}  // namespace starling
