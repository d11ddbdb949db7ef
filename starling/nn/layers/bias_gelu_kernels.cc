#include "starling/nn/layers/bias_gelu_kernels.h"

#include "starling/base/isa_dispatch.h"
#include "starling/nn/layers/vector_exp.h"

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

}  // namespace

void gelu_row(const float* x, const float* b, float* y, int64_t n) {
  dispatch_fused(best_isa(), [=]() STARLING_INLINE_LAMBDA { rows_forward(x, b, y, n); });
}

void gelu_gradient_row(const float* x, const float* b, const float* dy, float* dx, float* sum, int64_t n) {
  dispatch_fused(best_isa(), [=]() STARLING_INLINE_LAMBDA { rows_backward(x, b, dy, dx, sum, n); });
}

}  // namespace starling
