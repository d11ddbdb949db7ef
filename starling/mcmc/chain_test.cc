// Compares chains with normal densities whose moments are known, and diagnostics with series whose
// autocorrelation is known.
#include "starling/mcmc/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/mcmc/diagnostics.h"
#include "starling/mcmc/draws_checkpoint.h"
#include "starling/mcmc/gaussian_posterior.h"
#include "starling/testing/temp_dir.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

PosteriorDraws draws_of(Chain& chain, int64_t dimensions, int64_t warmup, int64_t count) {
  PosteriorDraws draws{dimensions, {}};
  for (int64_t i = 0; i < warmup + count; ++i) {
    chain.advance();
    if (i >= warmup)
      draws.values.insert(draws.values.end(), chain.position().begin(), chain.position().end());
  }
  return draws;
}

// A density without samples, which a test writes as a function.
class OwnDensity final : public Posterior {
 public:
  using Function = double (*)(std::span<const double>, std::span<double>);
  OwnDensity(Function function, int64_t dimensions) : function_(function), dimensions_(dimensions) {}
  int64_t dimensions() const override { return dimensions_; }
  int64_t samples() const override { return 0; }
  double log_prior(std::span<const double> x, std::span<double> gradient) const override {
    return function_(x, gradient);
  }
  double log_likelihood(std::span<const double>, int64_t, int64_t,
                        std::span<double> gradient) const override {
    for (double& element : gradient) element = 0;
    return 0;
  }
  std::vector<double> start() const override {
    return std::vector<double>(static_cast<size_t>(dimensions_), 1.0);
  }

 private:
  Function function_;
  int64_t dimensions_;
};

// Both samplers. The parameters are correlated and have different deviations.
TEST(Chain, FindsTheMomentsOfANormalDensity) {
  const GaussianPosterior posterior({.dimensions = 3, .samples = 500, .correlation = 0.8, .seed = 4});
  const Moments exact = posterior.exact_moments();
  for (const Sampler sampler : {Sampler::kHmc, Sampler::kRandomWalk}) {
    int outliers = 0, moments = 0;
    for (uint64_t seed = 0; seed < (thorough() ? 20 : 4); ++seed) {
      SubPosterior density(posterior, 0, 1);
      const ChainOptions options{.sampler = sampler, .warmup = 2000};
      const auto chain = make_chain(options, density, posterior.start(), key_of(seed, 1, 1));
      const PosteriorDraws draws = draws_of(*chain, 3, options.warmup, 5000);
      const double accepted = chain->report().accepted / chain->report().draws;
      EXPECT_GT(accepted, sampler == Sampler::kHmc ? 0.7 : 0.15);
      EXPECT_LT(accepted, sampler == Sampler::kHmc ? 0.97 : 0.5);
      for (size_t j = 0; j < 3; ++j) {
        std::vector<double> series = draws.series(static_cast<int64_t>(j)), squares;
        for (const double x : series) squares.push_back(std::pow(x - exact.mean[j], 2));
        EXPECT_LT(split_r_hat(series), 1.05);
        const double variance = exact.covariance(j, j);
        const Moments found = moments_of(draws);
        const double z_mean = (found.mean[j] - exact.mean[j]) / std::sqrt(variance / effective_size(series));
        const double z_variance =
            (found.covariance(j, j) - variance) / (variance * std::sqrt(2 / effective_size(squares)));
        outliers += (std::abs(z_mean) > 3) + (std::abs(z_variance) > 3);
        moments += 2;
      }
    }
    EXPECT_LE(outliers, 0.02 * moments + 1) << "sampler " << static_cast<int>(sampler);
  }
}

TEST(Chain, HmcScalesParametersOfDifferentSizes) {
  const OwnDensity posterior(
      [](std::span<const double> x, std::span<double> gradient) {
        const double a = x[0] / 10, b = x[1] * 10;
        if (!gradient.empty()) gradient[0] = -a / 10, gradient[1] = -b * 10;
        return -(a * a + b * b) / 2;
      },
      2);
  SubPosterior density(posterior, 0, 1);
  const auto chain = make_chain({.warmup = 2000}, density, {1, 1}, 8);
  const Moments found = moments_of(draws_of(*chain, 2, 2000, 4000));
  EXPECT_NEAR(found.deviation(0), 10, 1);
  EXPECT_NEAR(found.deviation(1), 0.1, 0.01);
  const double evaluations = chain->report().evaluations;
  EXPECT_LT(evaluations, 2000 * 20 + 4000 * 4);  // few steps with the variances, instead of 100
}

// While the variances are not known, a trajectory has at most 16 steps. One with the wanted length has 100.
TEST(Chain, HmcTakesFewStepsBeforeItKnowsTheVariances) {
  const OwnDensity posterior(
      [](std::span<const double> x, std::span<double> gradient) {
        if (!gradient.empty()) gradient[0] = -x[0], gradient[1] = -x[1] * 1e4;
        return -(x[0] * x[0] + x[1] * x[1] * 1e4) / 2;
      },
      2);
  SubPosterior density(posterior, 0, 1);
  const auto chain = make_chain({.warmup = 1000}, density, {1, 0.01}, 8);
  const auto begin = chain->report().evaluations;
  for (int i = 0; i < 499; ++i) chain->advance();
  EXPECT_LE(chain->report().evaluations - begin, 499 * 16);
  EXPECT_GT(chain->report().evaluations - begin, 499 * 8);
}

TEST(Chain, RandomWalkScalesParametersOfDifferentSizes) {
  const OwnDensity posterior(
      [](std::span<const double> x, std::span<double>) {
        const double a = x[0] / 1e3, b = x[1] / 1e-3;
        return -(a * a + b * b) / 2;
      },
      2);
  SubPosterior density(posterior, 0, 1);
  const ChainOptions options{.sampler = Sampler::kRandomWalk, .warmup = 20'000};
  const auto chain = make_chain(options, density, {0, 0}, 8);
  const Moments found = moments_of(draws_of(*chain, 2, options.warmup, 30'000));
  EXPECT_NEAR(found.deviation(0), 1e3, 100);
  EXPECT_NEAR(found.deviation(1), 1e-3, 1e-4);
  EXPECT_NEAR(chain->report().accepted / chain->report().draws, 0.234, 0.1);
}

// e^(−√|x|), for which the first scale 2.38 is too large. The last covariance is not the last thing that the
// warm-up finds, whether or not ten divides its length.
TEST(Chain, RandomWalkFindsItsScaleAfterTheLastCovariance) {
  const OwnDensity posterior(
      [](std::span<const double> x, std::span<double>) { return -std::sqrt(std::abs(x[0])); }, 1);
  for (const int64_t warmup : {1000, 1005}) {
    double mean = 0;
    constexpr int kChains = 10;
    for (uint64_t key = 0; key < kChains; ++key) {
      SubPosterior density(posterior, 0, 1);
      const auto chain =
          make_chain({.sampler = Sampler::kRandomWalk, .warmup = warmup}, density, {1}, key_of(1, key, 2));
      draws_of(*chain, 1, warmup, 5000);
      const double accepted = chain->report().accepted / chain->report().draws;
      EXPECT_NEAR(accepted, 0.44, 0.15) << "warm-up " << warmup << ", key " << key;
      mean += accepted / kChains;
    }
    EXPECT_NEAR(mean, 0.44, 0.05) << "warm-up " << warmup;
  }
}

// e^(−x) for x > 0, and 0 elsewhere.
TEST(Chain, NeverGoesWhereTheDensityIsZero) {
  const OwnDensity posterior(
      [](std::span<const double> x, std::span<double> gradient) {
        if (x[0] <= 0) return kNothing;
        if (!gradient.empty()) gradient[0] = -1;
        return -x[0];
      },
      1);
  for (const Sampler sampler : {Sampler::kHmc, Sampler::kRandomWalk}) {
    SubPosterior density(posterior, 0, 1);
    const auto chain = make_chain({.sampler = sampler}, density, {1}, 3);
    const PosteriorDraws draws = draws_of(*chain, 1, 1000, 20'000);
    for (const double x : draws.values) ASSERT_GT(x, 0);
    EXPECT_NEAR(moments_of(draws).mean[0], 1, 0.1);
    EXPECT_NEAR(moments_of(draws).deviation(0), 1, 0.15);
  }
}

TEST(Chain, GoesOnFromItsStateBitByBit) {
  const GaussianPosterior posterior({.dimensions = 2, .samples = 50});
  for (const Sampler sampler : {Sampler::kHmc, Sampler::kRandomWalk}) {
    const ChainOptions options{.sampler = sampler, .warmup = 200};
    for (const int64_t at : {1, 99, 120, 151, 199, 200, 230}) {
      SubPosterior density(posterior, 0, 1), other(posterior, 0, 1);
      const auto whole = make_chain(options, density, {0, 0}, 5);
      for (int64_t i = 0; i < at; ++i) whole->advance();
      const auto resumed = make_chain(options, other, {0, 0}, 5);
      resumed->restore(whole->state());
      for (int64_t i = at; i < 260; ++i) whole->advance(), resumed->advance();
      EXPECT_EQ(whole->state(), resumed->state()) << at;
      EXPECT_EQ(whole->report().evaluations, resumed->report().evaluations);
    }
    SubPosterior density(posterior, 0, 1);
    const auto chain = make_chain(options, density, {0, 0}, 5);
    EXPECT_THROW(chain->restore(std::vector<double>(3)), Error);
    EXPECT_THROW(chain->restore(std::vector<double>(300)), Error);
    for (const double number :
         {std::nan(""), 1e300, -1e300, -1.0, 0.5, std::numeric_limits<double>::infinity()}) {
      std::vector<double> damaged = chain->state();
      damaged[0] = number;  // the count of transitions
      EXPECT_THROW(chain->restore(damaged), Error) << number;
    }
    for (size_t i = 0; i < chain->state().size(); ++i) {
      for (const double number : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        std::vector<double> damaged = chain->state();
        damaged[i] = number;
        EXPECT_THROW(chain->restore(damaged), Error) << i;
      }
    }
    std::vector<double> negative = chain->state();
    // The first variance of HMC, or the adaptations of the random walk.
    negative[sampler == Sampler::kHmc ? 10 : 12] = -1;
    EXPECT_THROW(chain->restore(negative), Error);
  }
}

// Missing draws would be filled up with zeros.
TEST(DrawsCheckpoint, DrawsThatTheTransitionsDoNotMakeAreRefused) {
  const GaussianPosterior posterior({.dimensions = 2, .samples = 50});
  for (const int64_t numbers : {2, 3, 4, 6}) {
    const TempDir dir;
    McmcOptions options;
    options.chain.warmup = 3;
    options.checkpoint = dir.file("mcmc");
    SubPosterior density(posterior, 0, 1);
    const auto chain = make_chain(options.chain, density, {0, 0}, 5);
    for (int i = 0; i < 5; ++i) chain->advance();
    DrawsCheckpoint checkpoint(options, posterior, 0, 1, {});
    PosteriorDraws draws{2, {}};
    EXPECT_EQ(checkpoint.load(*chain, draws), -1);
    checkpoint.save(5, *chain, {2, std::vector<double>(static_cast<size_t>(numbers), 0.5)});
    if (numbers == 4) {
      EXPECT_EQ(checkpoint.load(*chain, draws), 5);
    } else {
      EXPECT_THROW(checkpoint.load(*chain, draws), Error) << numbers;
    }
  }
}

TEST(Chain, DensitiesThatNoSamplerCanUseAreRefused) {
  struct Case {
    OwnDensity::Function function;
    const char* message;
  };
  const Case cases[] = {
      {[](std::span<const double> x, std::span<double> gradient) {
         if (!gradient.empty()) gradient[0] = gradient[1] = -0.1;
         return x[0] < 5 ? std::sqrt(-1.0) : 0.0;
       },
       "sub-posterior 1 of 4: the logarithm of the prior is"},
      {[](std::span<const double>, std::span<double>) { return -kNothing; },
       "is inf at (1, 1); return -infinity where the density is 0"},
      {[](std::span<const double>, std::span<double>) { return kNothing; }, "give another start()"},
      {[](std::span<const double>, std::span<double> gradient) {
         if (!gradient.empty()) gradient[0] = 1, gradient[1] = kNothing;
         return 0.0;
       },
       "an element of the gradient is -inf"}};
  for (const Case& one : cases) {
    const OwnDensity posterior(one.function, 2);
    SubPosterior density(posterior, 1, 4);
    try {
      make_chain({}, density, posterior.start(), 0);
      ADD_FAILURE() << "no error: " << one.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
      EXPECT_THAT(error.what(), HasSubstr(one.message));
    }
  }
  const OwnDensity two([](std::span<const double>, std::span<double>) { return 0.0; }, 2);
  SubPosterior density(two, 0, 1);
  EXPECT_THAT([&] { make_chain({}, density, {1, 2, 3}, 0); },
              ThrowsMessage<ConfigError>(HasSubstr("has 3 numbers for 2 parameters; return one per")));
  EXPECT_THROW(check_chain({.warmup = -1}), ConfigError);
  EXPECT_THROW(check_chain({.target_acceptance = 1}), ConfigError);
  EXPECT_THROW(check_chain({.length = std::nan("")}), ConfigError);
  EXPECT_THROW(check_chain({.most_steps = 0}), ConfigError);
}

// The product of sub-posteriors is the posterior, with prior^(1/M) in each of them.
TEST(SubPosterior, TheLogarithmsAddUpToThatOfThePosterior) {
  const GaussianPosterior posterior({.dimensions = 3, .samples = 101, .prior_deviation = 0.5, .seed = 6});
  const std::vector<double> x = {0.3, -0.2, 0.7};
  SubPosterior whole(posterior, 0, 1);
  std::vector<double> gradient(3), sum(3, 0.0), part(3);
  const std::vector<double> other = {0.1, 0.1, 0.1};  // the densities have constants of their own
  const double difference = whole.log_density(x, gradient) - whole.log_density(other, {});
  double added = 0;
  for (int m = 0; m < 4; ++m) {
    SubPosterior density(posterior, m, 4);
    added += density.log_density(x, part) - density.log_density(other, {});
    for (size_t i = 0; i < 3; ++i) sum[i] += part[i];
  }
  EXPECT_NEAR(added, difference, 1e-9);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(sum[i], gradient[i], 1e-9);
    std::vector<double> right = x, left = x;
    right[i] += 1e-4, left[i] -= 1e-4;
    EXPECT_NEAR(gradient[i], (whole.log_density(right, {}) - whole.log_density(left, {})) / 2e-4, 1e-4);
  }
}

// A series xₜ₊₁ = φ xₜ + noise has (1 − φ)/(1 + φ) independent numbers per number.
TEST(Diagnostics, TheEffectiveSizeOfAnAutoregressiveSeries) {
  constexpr size_t kCount = 40'000;
  for (const double phi : {-0.5, 0.0, 0.5, 0.9}) {
    RandomStream random(12);
    std::vector<double> series = {0};
    while (series.size() < kCount) series.push_back(phi * series.back() + random.normal());
    const double expected = kCount * (1 - phi) / (1 + phi);
    EXPECT_NEAR(effective_size(series) / expected, 1, 0.15) << phi;
    EXPECT_NEAR(split_r_hat(series), 1, 0.01) << phi;
    for (size_t i = kCount / 2; i < kCount; ++i) series[i] += 3;
    EXPECT_GT(split_r_hat(series), 1.3) << phi;
  }
  EXPECT_TRUE(std::isnan(effective_size(std::vector<double>(10, 1.0))));
  EXPECT_TRUE(std::isnan(split_r_hat(std::vector<double>{1, 2, 3})));
}

}  // namespace
}  // namespace starling
