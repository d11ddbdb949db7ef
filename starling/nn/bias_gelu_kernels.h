// The rows of bias_gelu.h; torch-free, compiled for several instruction sets (bias_gelu_kernels.cc).
#pragma once

#include <cstdint>

namespace starling {

// y[i] = gelu(x[i] + b[i])
void gelu_row(const float* x, const float* b, float* y, int64_t n);
// dx[i] = dy[i] gelu'(x[i] + b[i]); sum[i] += dx[i]
void gelu_gradient_row(const float* x, const float* b, const float* dy, float* dx, float* sum, int64_t n);

}  // namespace starling
