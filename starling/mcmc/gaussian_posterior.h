// The posterior of the mean of a normal density whose covariance is known. It is a normal density with known
// moments, with which estimates are compared.
//
//   xᵢ ~ N(θ, S),   θ ~ N(0, τ² I)
//   Σ = (I/τ² + N S⁻¹)⁻¹,   μ = Σ S⁻¹ Σᵢ xᵢ
#pragma once

#include <cstdint>
#include <vector>

#include "starling/mcmc/draws.h"
#include "starling/mcmc/posterior.h"

namespace starling {

// The settings of a generated problem.
struct GaussianProblem {
  int64_t dimensions = 2;
  int64_t samples = 10'000;
  double prior_deviation = 10;  // τ
  double correlation = 0.6;     // of neighboring elements of a sample
  uint64_t seed = 0;
};

// GaussianPosterior generates the samples. Element j of a sample has the standard deviation 1 + j/2, and
// elements j and k have the correlation ρ^|j−k|. All numbers are functions of (seed, sample, element).
class GaussianPosterior final : public Posterior {
 public:
  // Errors: ConfigError if a setting is out of range.
  explicit GaussianPosterior(const GaussianProblem& problem);

  int64_t dimensions() const override { return problem_.dimensions; }
  int64_t samples() const override { return problem_.samples; }
  double log_prior(std::span<const double> x, std::span<double> gradient) const override;
  double log_likelihood(std::span<const double> x, int64_t begin, int64_t end,
                        std::span<double> gradient) const override;
  uint64_t fingerprint() const override;

  // Returns the moments of sub-posterior `number` of `count`. Sub-posterior 0 of 1 is the posterior.
  Moments exact_moments(int number = 0, int count = 1) const;

 private:
  std::vector<double> sum_of(int64_t begin, int64_t end) const;

  GaussianProblem problem_;
  SquareMatrix precision_;    // S⁻¹
  std::vector<double> sums_;  // of the first k samples, for k = 0 … N
};

}  // namespace starling
