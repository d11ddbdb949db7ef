#include "starling/nn/layers/causal_softmax.h"

#include <algorithm>

#include "starling/base/isa_dispatch.h"
#include "starling/nn/layers/vector_exp.h"

namespace starling {
namespace {

constexpr int64_t kLanes = kSoftmaxLanes;
constexpr float kBeyond = -1e30f;

// Computes the softmax of the first `count` of `width` numbers in place. Sums and maxima are kept per lane,
// so that a compiler can use one vector register for them.
__attribute__((always_inline)) inline void softmax(float* p, int64_t count, int64_t width) {
  const int64_t end = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = count; i < end; ++i) p[i] = kBeyond;
  float most[kLanes], sum[kLanes] = {};
  for (int64_t j = 0; j < kLanes; ++j) most[j] = p[j];
  for (int64_t i = kLanes; i < end; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) most[j] = most[j] > p[i + j] ? most[j] : p[i + j];
  float top = most[0];
  for (int64_t j = 1; j < kLanes; ++j) top = top > most[j] ? top : most[j];
  for (int64_t i = 0; i < end; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      p[i + j] = vector_exp(p[i + j] - top);
      sum[j] += p[i + j];
    }
  }
  float total = 0;
  for (int64_t j = 0; j < kLanes; ++j) total += sum[j];
  const float scale = 1.0f / total;
  for (int64_t i = 0; i < end; ++i) p[i] *= scale;
  std::fill(p + count, p + width, 0.0f);
}

__attribute__((always_inline)) inline void gradient(const float* __restrict p, float* __restrict dp,
                                                    int64_t width) {
  float sum[kLanes] = {};
  for (int64_t i = 0; i < width; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) sum[j] += p[i + j] * dp[i + j];
  float total = 0;
  for (int64_t j = 0; j < kLanes; ++j) total += sum[j];
  for (int64_t i = 0; i < width; ++i) dp[i] = p[i] * (dp[i] - total);
}

}  // namespace

void softmax_row(float* p, int64_t count, int64_t width) {
  dispatch_fused(best_isa(), [=]() STARLING_INLINE_LAMBDA { softmax(p, count, width); });
}

void softmax_gradient_row(const float* p, float* dp, int64_t width) {
  dispatch_fused(best_isa(), [=]() STARLING_INLINE_LAMBDA { gradient(p, dp, width); });
}

}  // namespace starling
