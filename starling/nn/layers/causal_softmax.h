// Kernels for one row of causal_attention.h. They need no torch. causal_softmax.cc is compiled for several
// instruction sets.
#pragma once

#include <cstdint>

namespace starling {

// Row widths are multiples of this number of floats.
constexpr int64_t kSoftmaxLanes = 16;

// Replaces p[0 … count) by its softmax and p[count … width) by zeros. `width` is a multiple of kSoftmaxLanes,
// and 1 ≤ count ≤ width.
void softmax_row(float* p, int64_t count, int64_t width);
// Applies the gradient of softmax in place: dp[i] = p[i] (dp[i] - Σ_j p[j] dp[j]) for i < width. `width` is a
// multiple of kSoftmaxLanes.
void softmax_gradient_row(const float* p, float* dp, int64_t width);

}  // namespace starling
