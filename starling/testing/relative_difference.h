// relative_difference: how far apart two vectors are, |actual - expected| / |expected| in the 2-norm,
// accumulated in fp64.
//
// Tests compare gradients and updates with it. An element near zero does not decide the result.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace starling {

// Returns the difference. It is 0 for two zero vectors. It is infinity if only `expected` is zero, if the
// sizes differ, or if a value is not finite.
template <typename T>
double relative_difference(std::span<const T> actual, std::span<const T> expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kInfinity;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double e = static_cast<double>(expected[i]);
    const double d = static_cast<double>(actual[i]) - e;
    difference += d * d;
    norm += e * e;
  }
  if (!std::isfinite(difference) || !std::isfinite(norm)) return kInfinity;
  if (difference == 0) return 0;
  return norm == 0 ? kInfinity : std::sqrt(difference / norm);
}

}  // namespace starling
