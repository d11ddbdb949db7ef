#include "starling/mcmc/logistic_posterior.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/lbfgs/logistic.h"

namespace starling {

LogisticPosterior::LogisticPosterior(const SampleTable& table, double ridge) : table_(table), ridge_(ridge) {
  if (!(ridge > 0) || !std::isfinite(ridge))
    throw ConfigError("--ridge", fmt::format("{} gives no prior; use a positive number", ridge));
}

double LogisticPosterior::log_prior(std::span<const double> x, std::span<double> gradient) const {
  double squares = 0;
  for (const double w : x) squares += w * w;
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = -ridge_ * x[i];
  return -ridge_ / 2 * squares;
}

double LogisticPosterior::log_likelihood(std::span<const double> x, int64_t begin, int64_t end,
                                         std::span<double> gradient) const {
  std::vector<double> unused(gradient.empty() ? x.size() : 0);
  const std::span<double> sums = gradient.empty() ? std::span(unused) : gradient;
  const double loss = *logistic_sum(table_, begin, end, x, sums, {});
  for (double& element : gradient) element = -element;
  return -loss;
}

uint64_t LogisticPosterior::fingerprint() const {
  return key_of(hash_of(table_), std::bit_cast<uint64_t>(ridge_), 1);
}

}  // namespace starling
