// Kernels for one row of bias_gelu.h. They need no torch. bias_gelu_kernels.cc is compiled for several
// instruction sets.
#pragma once

#include <cstdint>

namespace starling {

// Computes y[i] = gelu(x[i] + b[i]) for i < n.
void gelu_row(const float* x, const float* b, float* y, int64_t n);
// Computes dx[i] = dy[i] gelu'(x[i] + b[i]) and sum[i] += dx[i] for i < n.
void gelu_gradient_row(const float* x, const float* b, const float* dy, float* dx, float* sum, int64_t n);

}  // namespace starling
