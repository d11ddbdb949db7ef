// Posterior is what a program gives to starling::sample_posterior() (mcmc/sample_posterior.h): the logarithms
// of a prior and of a likelihood, with their gradients.
//
//   class Coin : public starling::Posterior {
//     int64_t dimensions() const override { return 1; }
//     int64_t samples() const override { return 1000; }
//     double log_prior(std::span<const double> x, std::span<double> gradient) const override;
//     double log_likelihood(std::span<const double> x, int64_t begin, int64_t end,
//                           std::span<double> gradient) const override;
//     uint64_t fingerprint() const override;
//   };
//
// Sub-posterior m of M is proportional to prior(x)^(1/M) times the likelihood of the samples N m/M to
// N (m+1)/M. The product of all sub-posteriors is the posterior. A rank asks only for the samples of its own
// sub-posteriors, so that it need not hold any other ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace starling {

// Posterior is the interface. The functions are const and depend on their arguments alone. One thread at a
// time calls an object.
//
// Both densities are logarithms up to a constant. A density of 0 is −∞. A sampler refuses other values that
// are not finite. `x` has dimensions() elements. `gradient` has as many elements, and the function sets all
// of them; or it is empty, and the function needs no gradient. If the result is −∞, the gradient does not
// count.
class Posterior {
 public:
  virtual ~Posterior() = default;

  // The number of parameters, at least 1.
  virtual int64_t dimensions() const = 0;
  // The number of samples N of all ranks together.
  virtual int64_t samples() const = 0;
  // Returns the logarithm of the prior.
  virtual double log_prior(std::span<const double> x, std::span<double> gradient) const = 0;
  // Returns the logarithm of the likelihood of the samples begin … end - 1.
  virtual double log_likelihood(std::span<const double> x, int64_t begin, int64_t end,
                                std::span<double> gradient) const = 0;
  // Returns where the chains begin. The density must not be 0 there.
  virtual std::vector<double> start() const {
    return std::vector<double>(static_cast<size_t>(dimensions()), 0.0);
  }
  // Returns a hash of the data and the settings, by which a checkpoint is compared with the posterior. With
  // a constant, a checkpoint of other data of equal size is accepted.
  virtual uint64_t fingerprint() const { return 0; }
};

}  // namespace starling
