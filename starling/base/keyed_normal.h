// Normal random numbers that are made from uniform ones.
#pragma once

#include <cmath>
#include <numbers>

namespace starling {

// Returns a standard normal number (Box and Muller, A Note on the Generation of Random Normal Deviates,
// 1958). `logarithm` is ln(1 − u), as log(1 − u) or log1p(−u) computes it, whose last bits may differ. u and
// v are uniform in [0, 1).
inline double normal_of(double logarithm, double v) {
  return std::sqrt(-2 * logarithm) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace starling
