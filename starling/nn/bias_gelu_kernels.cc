#include "starling/nn/bias_gelu_kernels.h"

#include "starling/nn/vector_exp.h"

namespace starling {
namespace {

constexpr float kRoot = 0.7978845608f;  // √(2/π)
constexpr float kCube = 0.044715f;

__attribute__((always_inline)) inline float sigmoid_of_2u(float z) {
  return 1.0f / (1.0f + vector_exp(-2.0f * kRoot * (z + kCube * z * z * z)));
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
