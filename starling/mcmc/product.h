// The product of normal densities, which is the parametric estimate of the posterior (Neiswanger, Wang and
// Xing 2014, section 3.1).
//
//   Σ̂ = (Σₘ Σ̂ₘ⁻¹)⁻¹,    μ̂ = Σ̂ Σₘ Σ̂ₘ⁻¹ μ̂ₘ
//
// μ̂ₘ and Σ̂ₘ are the moments of the draws of sub-posterior m.
#pragma once

#include <span>
#include <vector>

#include "starling/mcmc/draws.h"

namespace starling {

// Returns the moments of the product. Errors: Error(kNumeric) if the draws of a sub-posterior do not
// determine a covariance, because they are too few or because the chain has not moved; that of
// refuse_product().
Moments product_of(std::span<const Moments> parts);

// Throws Error(kNumeric): the product has no covariance in fp64.
[[noreturn]] void refuse_product();

// A normal density, for its logarithm.
class NormalDensity {
 public:
  // Errors: Error(kNumeric) if the covariance is not positive definite. `number` is the sub-posterior's, for
  // the message.
  NormalDensity(Moments moments, int number);
  // Returns the logarithm of the density without the constant −d/2 log 2π.
  double log_density(std::span<const double> x) const;
  // The inverse of the covariance.
  SquareMatrix precision() const { return inverse_of_product(lower_); }
  // The mean.
  const std::vector<double>& mean() const { return mean_; }

 private:
  std::vector<double> mean_;
  SquareMatrix lower_;
  double log_scale_ = 0;  // −log √det
};

}  // namespace starling
