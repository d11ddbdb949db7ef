// One of the M densities that are sampled apart (Neiswanger, Wang and Xing, "Asymptotically exact,
// embarrassingly parallel MCMC", UAI 2014, equation 2.1).
//
//   p_m(x) ∝ p(x)^(1/M) Π p(sample | x),    the product is over the samples N m/M … N (m+1)/M - 1
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/mcmc/posterior.h"

namespace starling {

// SubPosterior computes the density of one sub-posterior and refuses values that a sampler cannot use. Not
// thread-safe.
class SubPosterior {
 public:
  // Sub-posterior `number` of `count`, from 0. The posterior must outlive this object.
  SubPosterior(const Posterior& posterior, int number, int count);

  // The number of parameters.
  size_t dimensions() const { return prior_gradient_.size(); }
  // Returns the logarithm of the density up to a constant. The result is −∞ if the density is 0, or if an
  // element of x is not finite. gradient: as for Posterior. Errors: Error(kNumeric) that names the
  // sub-posterior and the place, if the density is NaN or +∞, or if the gradient of a finite density is not
  // finite.
  double log_density(std::span<const double> x, std::span<double> gradient);
  // Returns how often log_density() has evaluated the posterior.
  int64_t evaluations() const { return evaluations_; }
  // Goes on counting from a number of evaluations.
  void count_from(int64_t evaluations) { evaluations_ = evaluations; }

 private:
  [[noreturn]] void refuse(std::span<const double> x, const char* what, double value) const;

  const Posterior& posterior_;
  const int number_, count_;
  const int64_t begin_, end_;  // of the samples
  int64_t evaluations_ = 0;
  std::vector<double> prior_gradient_;
};

}  // namespace starling
