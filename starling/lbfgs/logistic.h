// The loss of logistic regression and its gradient on a range of samples.
//
//   f(w, b) = 1/N Σᵢ [ log(1 + exp(zᵢ)) − yᵢ zᵢ ] + λ/2 ‖w‖²,    zᵢ = w·xᵢ + b,   yᵢ ∈ {0, 1}
//
// The weights of a problem are w followed by the intercept b, which the ridge penalty leaves out. This header
// computes sums over samples. Division by N and the penalty happen on the shards (vector_shard.h).
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "starling/lbfgs/samples.h"

namespace starling {

// Returns the number of weights of a problem: one per feature, and the intercept.
inline int64_t weights_of(const SampleTable& table) {
  return table.features + 1;
}

// Sets `gradient` to the sum of the gradients of the samples begin … end - 1 and returns the sum of their
// losses. The samples are added in order, so equal arguments give equal bits on equal processors. Asks
// `cancelled` once per some hundred samples. After it has returned true, the function returns nothing.
// weights and gradient: weights_of(table) elements.
std::optional<double> logistic_sum(const SampleTable& table, int64_t begin, int64_t end,
                                   std::span<const double> weights, std::span<double> gradient,
                                   const std::function<bool()>& cancelled);

// A part of the samples.
struct SampleRange {
  int64_t begin = 0, end = 0;
};
// Returns the samples of a portion. Portions differ by at most one sample.
inline SampleRange samples_of(int64_t count, int portions, int portion) {
  return {count * portion / portions, count * (portion + 1) / portions};
}

}  // namespace starling
