#include "starling/mcmc/product.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "starling/base/error.h"

namespace starling {

NormalDensity::NormalDensity(Moments moments, int number) : mean_(std::move(moments.mean)) {
  const auto lower = cholesky(moments.covariance);
  if (!lower)
    throw Error(
        ErrorCode::kNumeric,
        fmt::format("the draws of sub-posterior {} do not determine a covariance of {} parameters; take "
                    "more draws (--draws) and a longer warm-up (--warmup)",
                    number, mean_.size()));
  lower_ = *lower;
  for (size_t i = 0; i < mean_.size(); ++i) log_scale_ -= std::log(lower_(i, i));
}

double NormalDensity::log_density(std::span<const double> x) const {
  std::vector<double> difference(x.begin(), x.end());
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= mean_[i];
  double squares = 0;
  for (const double z : solve_lower(lower_, difference)) squares += z * z;
  return log_scale_ - squares / 2;
}

void refuse_product() {
  throw Error(ErrorCode::kNumeric,
              "the product of the sub-posteriors has no covariance in fp64; scale the parameters to numbers "
              "of similar size");
}

Moments product_of(std::span<const Moments> parts) {
  const size_t d = parts.front().mean.size();
  SquareMatrix precision(d);
  std::vector<double> weighted(d, 0.0);  // Σₘ Σ̂ₘ⁻¹ μ̂ₘ
  for (size_t m = 0; m < parts.size(); ++m) {
    const NormalDensity part(parts[m], static_cast<int>(m));
    const SquareMatrix own = part.precision();
    const std::vector<double> own_weighted = times(own, part.mean());
    for (size_t i = 0; i < own.values.size(); ++i) precision.values[i] += own.values[i];
    for (size_t i = 0; i < d; ++i) weighted[i] += own_weighted[i];
  }
  // A sum of positive definite matrices has a factor.
  const auto lower = cholesky(precision);
  if (!lower) refuse_product();
  Moments whole;
  whole.covariance = inverse_of_product(*lower);
  whole.mean = times(whole.covariance, weighted);
  return whole;
}

}  // namespace starling
