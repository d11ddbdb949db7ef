// The posterior of a logistic regression with a ridge prior.
//
//   log p(w) = −λ/2 ‖w‖²,    log p(yᵢ | w) = yᵢ zᵢ − log(1 + exp(zᵢ)),    zᵢ = w·xᵢ + b
//
// The parameters are w followed by the intercept b. The prior includes b, because a sub-posterior needs a
// density that can be normalized.
#pragma once

#include "starling/lbfgs/samples.h"
#include "starling/mcmc/posterior.h"

namespace starling {

class LogisticPosterior final : public Posterior {
 public:
  // table: after make_binary(); it must outlive this object. ridge: λ. Errors: ConfigError if λ is not
  // positive.
  LogisticPosterior(const SampleTable& table, double ridge);

  int64_t dimensions() const override { return table_.features + 1; }
  int64_t samples() const override { return table_.count(); }
  double log_prior(std::span<const double> x, std::span<double> gradient) const override;
  double log_likelihood(std::span<const double> x, int64_t begin, int64_t end,
                        std::span<double> gradient) const override;
  uint64_t fingerprint() const override;

 private:
  const SampleTable& table_;
  const double ridge_;
};

}  // namespace starling
