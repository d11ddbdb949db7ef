#include "starling/nn/bias_gelu_kernels.h"

#include <bit>
#include <cmath>

namespace starling {
namespace {

// e^x for x clamped to [-87, 87]: 2^n e^r with |r| ≤ ln 2 / 2 and a polynomial of degree 6 for e^r (Taylor; its rest is below
// 2e-7 relative). Written so that a compiler vectorises it.
__attribute__((always_inline)) inline float exp_of(float x) {
  x = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
  const float shifted =
      x * 1.44269504f + 12582912.0f;  // 1.5 · 2²³: the integer part rounds into the low bits
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

constexpr float kRoot = 0.7978845608f;  // √(2/π)
constexpr float kCube = 0.044715f;

__attribute__((always_inline)) inline float sigmoid_of_2u(float z) {
  return 1.0f / (1.0f + exp_of(-2.0f * kRoot * (z + kCube * z * z * z)));
}

__attribute__((always_inline)) inline void rows_forward(const float* __restrict x, const float* __restrict b,
                                                        float* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float z = x[i] + b[i];
    y[i] = z * sigmoid_of_2u(z);
  }
}

__attribute__((always_inline)) inline void rows_backward(const float* __restrict x, const float* __restrict b,
                                                         const float* __restrict dy, float* __restrict dx,
                                                         float* __restrict sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float z = x[i] + b[i];
    const float s = sigmoid_of_2u(z);
    const float slope = 2.0f * kRoot * (1.0f + 3.0f * kCube * z * z);
    const float d = dy[i] * (s + z * s * (1.0f - s) * slope);
    dx[i] = d;
    sum[i] += d;
  }
}

#if defined(__x86_64__)
#define STARLING_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")))
#define STARLING_AVX2 __attribute__((target("avx2,fma")))

STARLING_AVX512 void forward_avx512(const float* x, const float* b, float* y, int64_t n) {
  rows_forward(x, b, y, n);
}
STARLING_AVX2 void forward_avx2(const float* x, const float* b, float* y, int64_t n) {
  rows_forward(x, b, y, n);
}
STARLING_AVX512 void backward_avx512(const float* x, const float* b, const float* dy, float* dx, float* sum,
                                     int64_t n) {
  rows_backward(x, b, dy, dx, sum, n);
}
STARLING_AVX2 void backward_avx2(const float* x, const float* b, const float* dy, float* dx, float* sum,
                                 int64_t n) {
  rows_backward(x, b, dy, dx, sum, n);
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

}  // namespace

void gelu_row(const float* x, const float* b, float* y, int64_t n) {
#if defined(__x86_64__)
  if (has_avx512()) return forward_avx512(x, b, y, n);
  if (has_avx2()) return forward_avx2(x, b, y, n);
#endif
  rows_forward(x, b, y, n);
}

void gelu_gradient_row(const float* x, const float* b, const float* dy, float* dx, float* sum, int64_t n) {
#if defined(__x86_64__)
  if (has_avx512()) return backward_avx512(x, b, dy, dx, sum, n);
  if (has_avx2()) return backward_avx2(x, b, dy, dx, sum, n);
#endif
  rows_backward(x, b, dy, dx, sum, n);
}

}  // namespace starling
