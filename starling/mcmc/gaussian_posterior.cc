#include "starling/mcmc/gaussian_posterior.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/mcmc/random_stream.h"

namespace starling {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 28;
constexpr uint64_t kCenterKey = ~uint64_t{0};  // of the hidden mean; no sample has this number

SquareMatrix covariance_of(const GaussianProblem& problem) {
  SquareMatrix covariance(static_cast<size_t>(problem.dimensions));
  for (size_t j = 0; j < covariance.size; ++j) {
    for (size_t k = 0; k < covariance.size; ++k) {
      const double distance = std::abs(static_cast<double>(j) - static_cast<double>(k));
      covariance(j, k) = (1 + static_cast<double>(j) / 2) * (1 + static_cast<double>(k) / 2) *
                         std::pow(problem.correlation, distance);
    }
  }
  return covariance;
}

void check(const GaussianProblem& problem) {
  if (problem.dimensions < 1 || problem.dimensions > 1000)
    throw ConfigError("--features", fmt::format("{} parameters; use 1 to 1000", problem.dimensions));
  if (problem.samples < 1 || problem.samples > kMostNumbers / problem.dimensions)
    throw ConfigError("--samples", fmt::format("{} samples; use 1 to {}", problem.samples,
                                               kMostNumbers / problem.dimensions));
  if (!(problem.prior_deviation > 0) || !std::isfinite(problem.prior_deviation))
    throw ConfigError("--ridge", "gives no prior; use a positive number");
  if (!(std::abs(problem.correlation) < 1))
    throw ConfigError("correlation", fmt::format("{} is not between -1 and 1", problem.correlation));
}

}  // namespace

GaussianPosterior::GaussianPosterior(const GaussianProblem& problem) : problem_(problem) {
  check(problem);
  const auto d = static_cast<size_t>(problem.dimensions);
  const SquareMatrix lower = *cholesky(covariance_of(problem));
  precision_ = inverse_of_product(lower);
  RandomStream hidden(key_of(problem.seed, kCenterKey, 0));
  std::vector<double> center(d), z(d);
  for (double& x : center) x = hidden.normal();
  sums_.assign(d * (static_cast<size_t>(problem.samples) + 1), 0.0);
  for (size_t i = 0; i < static_cast<size_t>(problem.samples); ++i) {
    RandomStream random(key_of(problem.seed, i, 0));
    for (double& number : z) number = random.normal();
    for (size_t j = 0; j < d; ++j) {
      double x = center[j];
      for (size_t k = 0; k <= j; ++k) x += lower(j, k) * z[k];
      sums_[(i + 1) * d + j] = sums_[i * d + j] + x;
    }
  }
}

std::vector<double> GaussianPosterior::sum_of(int64_t begin, int64_t end) const {
  const auto d = static_cast<size_t>(problem_.dimensions);
  std::vector<double> sum(d);
  for (size_t j = 0; j < d; ++j)
    sum[j] = sums_[static_cast<size_t>(end) * d + j] - sums_[static_cast<size_t>(begin) * d + j];
  return sum;
}

double GaussianPosterior::log_prior(std::span<const double> x, std::span<double> gradient) const {
  const double precision = 1 / (problem_.prior_deviation * problem_.prior_deviation);
  double squares = 0;
  for (const double element : x) squares += element * element;
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = -precision * x[i];
  return -precision / 2 * squares;
}

// With n samples and their mean x̄, the density is exp(−n/2 (θ − x̄)ᵀ S⁻¹ (θ − x̄)) up to a constant.
double GaussianPosterior::log_likelihood(std::span<const double> x, int64_t begin, int64_t end,
                                         std::span<double> gradient) const {
  if (begin == end) {
    for (double& element : gradient) element = 0;
    return 0;
  }
  const auto n = static_cast<double>(end - begin);
  std::vector<double> difference = sum_of(begin, end);
  for (size_t i = 0; i < difference.size(); ++i) difference[i] = difference[i] / n - x[i];
  const std::vector<double> scaled = times(precision_, difference);
  double squares = 0;
  for (size_t i = 0; i < scaled.size(); ++i) squares += difference[i] * scaled[i];
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = n * scaled[i];
  return -n / 2 * squares;
}

uint64_t GaussianPosterior::fingerprint() const {
  const uint64_t settings = key_of(problem_.seed, std::bit_cast<uint64_t>(problem_.prior_deviation),
                                   std::bit_cast<uint64_t>(problem_.correlation));
  return key_of(settings, static_cast<uint64_t>(problem_.dimensions),
                static_cast<uint64_t>(problem_.samples));
}

Moments GaussianPosterior::exact_moments(int number, int count) const {
  const int64_t begin = problem_.samples * number / count, end = problem_.samples * (number + 1) / count;
  SquareMatrix precision = precision_;
  for (double& element : precision.values) element *= static_cast<double>(end - begin);
  for (size_t j = 0; j < precision.size; ++j)
    precision(j, j) += 1 / (problem_.prior_deviation * problem_.prior_deviation) / count;
  Moments moments;
  moments.covariance = inverse_of_product(*cholesky(precision));
  moments.mean = times(moments.covariance, times(precision_, sum_of(begin, end)));
  return moments;
}

}  // namespace starling
