// Compares estimators with known products of densities, and the walk among components with the paper's
// formulas in plain loops.
#include "starling/mcmc/combine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/mcmc/component_walk.h"
#include "starling/mcmc/gaussian_posterior.h"
#include "starling/mcmc/product.h"
#include "starling/mcmc/random_stream.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

using testing::HasSubstr;

// Draws from a normal density.
PosteriorDraws normal_draws(const Moments& moments, int64_t count, uint64_t key) {
  PosteriorDraws draws{static_cast<int64_t>(moments.mean.size()), {}};
  const SquareMatrix lower = *cholesky(moments.covariance);
  RandomStream random(key);
  for (int64_t i = 0; i < count; ++i) {
    std::vector<double> z(moments.mean.size());
    for (double& number : z) number = random.normal();
    const std::vector<double> x = times(lower, z);
    for (size_t j = 0; j < x.size(); ++j) draws.values.push_back(moments.mean[j] + x[j]);
  }
  return draws;
}

// Returns the root of the mean square of the errors of all moments, in units of the true deviations.
double error_of(const Moments& found, const Moments& exact) {
  double squares = 0, count = 0;
  const size_t d = exact.mean.size();
  for (size_t j = 0; j < d; ++j) {
    squares += std::pow((found.mean[j] - exact.mean[j]) / exact.deviation(j), 2), ++count;
    for (size_t k = 0; k <= j; ++k)
      squares += std::pow(
          (found.covariance(j, k) - exact.covariance(j, k)) / exact.deviation(j) / exact.deviation(k), 2),
          ++count;
  }
  return std::sqrt(squares / count);
}

TEST(Combine, TheErrorOfEachEstimatorFallsAsTheDrawsGrow) {
  constexpr int kParts = 4;
  const GaussianPosterior posterior({.dimensions = 2, .samples = 1000, .seed = 5});
  const Moments exact = posterior.exact_moments();
  const uint64_t seeds = thorough() ? 8 : 3;
  for (const Combination combination :
       {Combination::kParametric, Combination::kNonparametric, Combination::kSemiparametric,
        Combination::kSemiparametricKernelWeights}) {
    double before = 1e9;
    for (const int64_t draws :
         thorough() ? std::vector<int64_t>{100, 1000, 10'000} : std::vector<int64_t>{100, 1000}) {
      double error = 0;
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        std::vector<PosteriorDraws> parts;
        for (int m = 0; m < kParts; ++m)
          parts.push_back(normal_draws(posterior.exact_moments(m, kParts), draws, key_of(seed, m, draws)));
        error +=
            error_of(combine_draws(combination, parts, seed).moments, exact) / static_cast<double>(seeds);
      }
      RecordProperty(name_of(combination) + std::to_string(draws), std::to_string(error));
      EXPECT_LT(error, 0.8 * before) << name_of(combination) << ", " << draws << " draws";
      before = error;
    }
    EXPECT_LT(before, thorough() ? 0.15 : 0.4) << name_of(combination);
  }
}

// Two densities x² e^(−x) have the product x⁴ e^(−2x), whose mean is 2.5 and whose variance is 1.25. Normal
// densities of their moments have a product with the mean 3.
TEST(Combine, EstimatorsByKernelsAreExactWhereTheParametricOneIsNot) {
  constexpr int64_t kDraws = 20'000;
  std::vector<PosteriorDraws> parts;
  for (uint64_t m = 0; m < 2; ++m) {
    RandomStream random(key_of(7, m, 0));
    PosteriorDraws& part = parts.emplace_back();
    for (int64_t i = 0; i < kDraws; ++i) {
      double x = 0;  // a sum of three exponential numbers
      for (int k = 0; k < 3; ++k) x -= std::log1p(-random.uniform());
      part.values.push_back(x);
    }
  }
  EXPECT_NEAR(combine_draws(Combination::kParametric, parts, 1).moments.mean[0], 3, 0.05);
  for (const Combination combination : {Combination::kNonparametric, Combination::kSemiparametric,
                                        Combination::kSemiparametricKernelWeights}) {
    const CombinedDraws combined = combine_draws(combination, parts, 1);
    EXPECT_NEAR(combined.moments.mean[0], 2.5, 0.1) << name_of(combination);
    EXPECT_NEAR(combined.moments.covariance(0, 0), 1.25, 0.2) << name_of(combination);
  }
}

// Algorithm 1 of the paper with its formulas, without sums that are kept from step to step. The draws are
// divided by the units beforehand.
struct NaiveWalk {
  Combination combination;
  std::vector<PosteriorDraws> parts;
  std::vector<Moments> moments;
  Moments whole;
  std::vector<int64_t> t;

  NaiveWalk(Combination which, const std::vector<PosteriorDraws>& draws, const std::vector<double>& units)
      : combination(which), parts(draws), t(draws.size()) {
    for (PosteriorDraws& part : parts) {
      for (size_t i = 0; i < part.values.size(); ++i) part.values[i] /= units[i % units.size()];
      moments.push_back(moments_of(part));
    }
    whole = product_of(moments);
  }
  std::vector<double> mean() const {
    std::vector<double> mean(whole.mean.size(), 0);
    for (size_t m = 0; m < parts.size(); ++m)
      for (size_t k = 0; k < mean.size(); ++k)
        mean[k] += parts[m].row(t[m])[k] / static_cast<double>(parts.size());
    return mean;
  }
  static Moments around(const std::vector<double>& mean, SquareMatrix covariance, double added) {
    for (size_t k = 0; k < mean.size(); ++k) covariance(k, k) += added;
    return {mean, covariance};
  }
  double log_weight(double h) const {
    const std::vector<double> center = mean();
    const NormalDensity kernel(around(center, SquareMatrix(center.size()), h * h), 0);
    double log = 0;
    for (size_t m = 0; m < parts.size(); ++m) log += kernel.log_density(parts[m].row(t[m]));
    if (combination != Combination::kSemiparametric) return log;
    const NormalDensity wide(around(whole.mean, whole.covariance, h * h / static_cast<double>(parts.size())),
                             0);
    log += wide.log_density(center);
    for (size_t m = 0; m < parts.size(); ++m)
      log -= NormalDensity(moments[m], 0).log_density(parts[m].row(t[m]));
    return log;
  }
  // The mean and the covariance of the present component.
  Moments component(double h) const {
    const double kernels = static_cast<double>(parts.size()) / (h * h);
    SquareMatrix precision(whole.mean.size());
    std::vector<double> weighted(whole.mean.size(), 0);
    if (combination != Combination::kNonparametric) {
      precision = NormalDensity(whole, 0).precision();
      weighted = times(precision, whole.mean);
    }
    const std::vector<double> center = mean();
    for (size_t k = 0; k < center.size(); ++k) {
      precision(k, k) += kernels;
      weighted[k] += kernels * center[k];
    }
    const SquareMatrix covariance = inverse_of_product(*cholesky(precision));
    return {times(covariance, weighted), covariance};
  }
};

TEST(Combine, TheWalkAmongComponentsIsThatOfThePaper) {
  constexpr int kParts = 3;
  constexpr int64_t kDraws = 60;
  const GaussianPosterior posterior({.dimensions = 2, .samples = 90, .seed = 2});
  std::vector<PosteriorDraws> parts;
  std::vector<double> units(2, 0);
  for (int m = 0; m < kParts; ++m) {
    parts.push_back(normal_draws(posterior.exact_moments(m, kParts), kDraws, key_of(3, m, 0)));
    for (size_t k = 0; k < 2; ++k) units[k] += moments_of(parts.back()).covariance(k, k) / kParts;
  }
  for (double& unit : units) unit = std::sqrt(unit);
  for (const Combination combination : {Combination::kNonparametric, Combination::kSemiparametric,
                                        Combination::kSemiparametricKernelWeights}) {
    NaiveWalk walk(combination, parts, units);
    const SquareMatrix q = eigen_of(walk.whole.covariance).vectors;
    RandomStream random(key_of(9, 0x77616c6b, static_cast<uint64_t>(combination)));
    const PosteriorDraws found = combine_draws(combination, parts, 9).draws;
    for (int64_t& t : walk.t) t = random.below(kDraws);
    for (int64_t i = 1; i <= kDraws; ++i) {
      const double h = std::pow(static_cast<double>(i), -1.0 / 6);
      for (int proposal = 0; proposal < kWalkSweeps * kParts; ++proposal) {
        NaiveWalk other = walk;
        other.t[static_cast<size_t>(proposal % kParts)] = random.below(kDraws);
        if (std::log1p(-random.uniform()) < other.log_weight(h) - walk.log_weight(h)) walk.t = other.t;
      }
      const Moments component = walk.component(h);
      std::vector<double> expected = component.mean;
      for (size_t k = 0; k < 2; ++k) {
        const std::vector<double> axis = {q(0, k), q(1, k)}, image = times(component.covariance, axis);
        const double deviation = std::sqrt(axis[0] * image[0] + axis[1] * image[1]);
        const double z = random.normal();
        for (size_t j = 0; j < 2; ++j) expected[j] += deviation * z * axis[j];
      }
      for (size_t j = 0; j < 2; ++j)
        ASSERT_NEAR(found.row(i - 1)[j] / units[j], expected[j], 1e-9)
            << name_of(combination) << ", draw " << i;
    }
  }
}

TEST(Combine, UnitsDoNotMatter) {
  const GaussianPosterior posterior({.dimensions = 2, .samples = 100, .seed = 1});
  std::vector<PosteriorDraws> parts, scaled;
  for (int m = 0; m < 3; ++m) {
    parts.push_back(normal_draws(posterior.exact_moments(m, 3), 200, static_cast<uint64_t>(m)));
    scaled.push_back(parts.back());
    for (size_t i = 0; i < scaled.back().values.size(); i += 2) scaled.back().values[i] *= 1024;
  }
  for (const CombinationName& row : combination_names()) {
    const PosteriorDraws a = combine_draws(row.combination, parts, 4).draws;
    const PosteriorDraws b = combine_draws(row.combination, scaled, 4).draws;
    ASSERT_EQ(a.count(), row.combination == Combination::kPool ? 600 : 200);
    for (int64_t i = 0; i < a.count(); ++i) {
      ASSERT_NEAR(a.row(i)[0], b.row(i)[0] / 1024, 1e-9) << row.name;
      ASSERT_NEAR(a.row(i)[1], b.row(i)[1], 1e-9) << row.name;
    }
  }
}

TEST(Combine, WhatHasNoCovarianceIsRefused) {
  PosteriorDraws still{2, std::vector<double>(40, 1.0)};
  const std::vector<PosteriorDraws> parts(2, still);
  for (const Combination combination : {Combination::kParametric, Combination::kSemiparametric}) {
    try {
      combine_draws(combination, parts, 0);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
      EXPECT_THAT(error.what(), HasSubstr("sub-posterior 0 do not determine a covariance"));
    }
  }
  EXPECT_DOUBLE_EQ(combine_draws(Combination::kAverage, parts, 0).moments.mean[1], 1);
  EXPECT_THROW(combination_named("mean"), ConfigError);
  EXPECT_EQ(combination_named("pool"), Combination::kPool);
}

// Returns three parts of draws. Each number of a draw is a normal number minus the normal numbers of all
// parameters before it. The condition of the covariance grows exponentially with the parameters.
std::vector<PosteriorDraws> ill_conditioned_draws(int64_t dimensions) {
  std::vector<PosteriorDraws> parts;
  for (uint64_t m = 0; m < 3; ++m) {
    RandomStream random(key_of(5, m, 0));
    PosteriorDraws& part = parts.emplace_back(PosteriorDraws{dimensions, {}});
    for (int64_t i = 0; i < 4 * dimensions; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < dimensions; ++j) {
        const double z = random.normal();
        part.values.push_back(z - sum);
        sum += z;
      }
    }
  }
  return parts;
}

// From some condition on, fp64 holds no covariance of the product. Then no estimator may return NaN.
TEST(Combine, NearlySingularDrawsGiveFiniteNumbersOrAreRefused) {
  int combined = 0, refused = 0;
  for (int64_t dimensions = 2; dimensions < 40; ++dimensions) {
    const std::vector<PosteriorDraws> parts = ill_conditioned_draws(dimensions);
    for (const Combination combination :
         {Combination::kParametric, Combination::kNonparametric, Combination::kSemiparametric}) {
      try {
        for (const double x : combine_draws(combination, parts, 1).draws.values)
          ASSERT_TRUE(std::isfinite(x)) << name_of(combination) << ", " << dimensions << " parameters";
        ++combined;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kNumeric);
        ++refused;
      }
    }
  }
  EXPECT_GT(combined, 0);
  EXPECT_GT(refused, 0);
}

TEST(Matrix, EigenvectorsAndInverseSatisfyTheirDefinitions) {
  constexpr size_t kSize = 7;
  RandomStream random(11);
  SquareMatrix root(kSize), a(kSize);
  for (double& x : root.values) x = random.normal();
  for (size_t i = 0; i < kSize; ++i)
    for (size_t j = 0; j < kSize; ++j)
      for (size_t k = 0; k < kSize; ++k) a(i, j) += root(i, k) * root(j, k);
  const Eigenvectors eigen = eigen_of(a);
  const SquareMatrix inverse = inverse_of_product(*cholesky(a));
  for (size_t k = 0; k < kSize; ++k) {
    std::vector<double> vector(kSize);
    for (size_t i = 0; i < kSize; ++i) vector[i] = eigen.vectors(i, k);
    const std::vector<double> image = times(a, vector), back = times(inverse, image);
    for (size_t i = 0; i < kSize; ++i) {
      EXPECT_NEAR(image[i], eigen.values[k] * vector[i], 1e-10);
      EXPECT_NEAR(back[i], vector[i], 1e-9);
    }
  }
  EXPECT_FALSE(cholesky(SquareMatrix(3)));
}

}  // namespace
}  // namespace starling
