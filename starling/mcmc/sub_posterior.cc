#include "starling/mcmc/sub_posterior.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr size_t kShownElements = 6;

bool all_finite(std::span<const double> x) {
  return std::all_of(x.begin(), x.end(), [](double element) { return std::isfinite(element); });
}

}  // namespace

SubPosterior::SubPosterior(const Posterior& posterior, int number, int count)
    : posterior_(posterior),
      number_(number),
      count_(count),
      begin_(posterior.samples() * number / count),
      end_(posterior.samples() * (number + 1) / count),
      prior_gradient_(static_cast<size_t>(posterior.dimensions())) {}

double SubPosterior::log_density(std::span<const double> x, std::span<double> gradient) {
  constexpr double kNowhere = -std::numeric_limits<double>::infinity();
  if (!all_finite(x)) return kNowhere;
  ++evaluations_;
  const bool wanted = !gradient.empty();
  const double prior = posterior_.log_prior(x, wanted ? std::span(prior_gradient_) : std::span<double>());
  if (prior == kNowhere) return kNowhere;
  const double likelihood = posterior_.log_likelihood(x, begin_, end_, gradient);
  const double density = prior / count_ + likelihood;
  if (density == kNowhere) return kNowhere;
  if (!std::isfinite(prior)) refuse(x, "the logarithm of the prior", prior);
  if (!std::isfinite(density)) refuse(x, "the logarithm of the density", density);
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += prior_gradient_[i] / count_;
  for (const double element : gradient)
    if (!std::isfinite(element)) refuse(x, "an element of the gradient", element);
  return density;
}

void SubPosterior::refuse(std::span<const double> x, const char* what, double value) const {
  std::string place;
  for (size_t i = 0; i < std::min(x.size(), kShownElements); ++i)
    place += fmt::format("{}{:.6g}", i == 0 ? "" : ", ", x[i]);
  if (x.size() > kShownElements) place += ", …";
  throw Error(
      ErrorCode::kNumeric,
      fmt::format("sub-posterior {} of {}: {} is {} at ({}); return -infinity where the density is 0, "
                  "and check the data and the formula at this place",
                  number_, count_, what, value, place));
}

}  // namespace starling
