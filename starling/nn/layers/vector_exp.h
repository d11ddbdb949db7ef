// The exponential function for loops that a compiler vectorizes (bias_gelu_kernels.cc, causal_softmax.cc).
#pragma once

#include <bit>
#include <cstdint>

namespace starling {

// Returns e^x for x clamped to [-87, 87]. It computes 2^n e^r with |r| ≤ ln 2 / 2, where a Taylor polynomial
// of degree 6 gives e^r. The relative error of the polynomial is below 2e-7.
__attribute__((always_inline)) inline float vector_exp(float x) {
  x = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
  const float shifted =
      x * 1.44269504f + 12582912.0f;  // 1.5 · 2²³: the sum rounds the integer part into the low bits
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - 0x4b400000;
  return p * std::bit_cast<float>((exponent + 127) << 23);
}

}  // namespace starling
