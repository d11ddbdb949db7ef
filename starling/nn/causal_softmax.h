// The rows of causal_attention.h; torch-free, compiled for several instruction sets (causal_softmax.cc).
#pragma once

#include <cstdint>

namespace starling {

constexpr int64_t kSoftmaxLanes = 16;

// p[0 … count) becomes its softmax, p[count … width) zero. width: a multiple of kSoftmaxLanes, 1 ≤ count ≤ width.
void softmax_row(float* p, int64_t count, int64_t width);
// dp[i] = p[i] (dp[i] - Σ_j p[j] dp[j]), i < width: the gradient of softmax. width: a multiple of kSoftmaxLanes.
void softmax_gradient_row(const float* p, float* dp, int64_t width);

}  // namespace starling
