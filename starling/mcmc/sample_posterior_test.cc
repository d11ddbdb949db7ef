// Samples on several ranks: known moments, equal bits on any number of ranks, counted bytes, checkpoints and
// faults.
#include "starling/mcmc/sample_posterior.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/bootstrap.h"
#include "starling/lbfgs/samples.h"
#include "starling/mcmc/diagnostics.h"
#include "starling/mcmc/gaussian_posterior.h"
#include "starling/mcmc/logistic_posterior.h"
#include "starling/testing/error_of.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/take_lock.h"
#include "starling/testing/temp_dir.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

using testing::HasSubstr;

const SystemClock kClock;

McmcOptions quick(int sub_posteriors) {
  McmcOptions options;
  options.sub_posteriors = sub_posteriors;
  options.draws = 60;
  options.chain.warmup = 80;
  options.seed = 3;
  return options;
}

// What a job of several ranks has given.
struct JobOutcome {
  McmcResult result;              // of rank 0
  uint64_t sent = 0;              // by all ranks, during the call
  std::vector<bool> interrupted;  // by rank
};

// Runs a job. stop_at: the transitions after which each rank is asked to stop; 0: never.
JobOutcome run_job(int ranks, const McmcOptions& options, const Posterior& posterior,
                   const std::vector<int64_t>& stop_at = {}) {
  JobOutcome outcome;
  outcome.interrupted.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  run_ranks(ranks, [&](const ThreadRank& self) {
    const auto group = join_group(*self.store, self.rank, self.size);
    std::atomic<bool> stop{false};
    McmcParts parts{.group = *group, .posterior = posterior, .clock = kClock, .stop = &stop};
    const int64_t last = stop_at.empty() ? 0 : stop_at[static_cast<size_t>(self.rank)];
    parts.on_transition = [&, last](int64_t number) { stop = last > 0 && number >= last; };
    const uint64_t before = group->traffic().sent();
    McmcResult result = sample_posterior(options, parts);
    barrier(*group);  // all messages have been counted
    const std::lock_guard lock(mutex);
    outcome.sent += group->traffic().sent() - before;
    outcome.interrupted[static_cast<size_t>(self.rank)] = result.interrupted;
    if (self.rank == 0) outcome.result = std::move(result);
  });
  return outcome;
}

std::vector<double> all_draws(const McmcResult& result) {
  std::vector<double> all = result.combined.draws.values;
  for (const SubPosteriorResult& part : result.sub_posteriors)
    all.insert(all.end(), part.draws.values.begin(), part.draws.values.end());
  return all;
}

// The numbers that estimate a moment of the product, one per draw of sub-posterior m, to first order: the
// derivative of the product's mean (k < 0) or covariance (j, k) in the distribution of the draws. The
// variance of the estimate is the sum over m of their variance divided by their effective number.
std::vector<double> influence(const Moments& exact, const Moments& part, const PosteriorDraws& draws,
                              size_t j, int k) {
  const size_t d = exact.mean.size();
  const SquareMatrix precision = inverse_of_product(*cholesky(part.covariance));
  std::vector<double> offset(d), difference(d), numbers;
  for (size_t i = 0; i < d; ++i) offset[i] = part.mean[i] - exact.mean[i];
  const std::vector<double> slope = times(precision, offset);
  for (int64_t t = 0; t < draws.count(); ++t) {
    double along = 0;
    for (size_t i = 0; i < d; ++i) {
      difference[i] = draws.row(t)[i] - part.mean[i];
      along += difference[i] * slope[i];
    }
    const std::vector<double> u = times(exact.covariance, times(precision, difference));
    numbers.push_back(k < 0 ? u[j] * (1 - along) : u[j] * u[static_cast<size_t>(k)]);
  }
  return numbers;
}

TEST(SamplePosterior, TheParametricMomentsAreThoseOfTheKnownPosterior) {
  constexpr int kParts = 4, kSize = 3;
  const auto group = make_single_group();
  int outliers = 0, moments = 0;
  const uint64_t seeds = thorough() ? 50 : 5;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const GaussianPosterior posterior({.dimensions = kSize, .samples = 1001, .seed = seed});
    const Moments exact = posterior.exact_moments();
    McmcOptions options = quick(kParts);
    options.draws = 4000;
    options.chain.warmup = 400;
    options.seed = seed;
    const McmcResult result =
        sample_posterior(options, {.group = *group, .posterior = posterior, .clock = kClock});
    for (size_t j = 0; j < kSize; ++j) {
      for (int k = -1; k <= static_cast<int>(j); ++k) {
        double variance = 0;
        for (int m = 0; m < kParts; ++m) {
          const std::vector<double> numbers =
              influence(exact, posterior.exact_moments(m, kParts),
                        result.sub_posteriors[static_cast<size_t>(m)].draws, j, k);
          variance += moments_of({1, numbers}).covariance(0, 0) / effective_size(numbers);
        }
        const Moments& found = result.combined.moments;
        const double error =
            k < 0 ? found.mean[j] - exact.mean[j]
                  : found.covariance(j, static_cast<size_t>(k)) - exact.covariance(j, static_cast<size_t>(k));
        outliers += std::abs(error) > 3 * std::sqrt(variance);
        ++moments;
      }
    }
  }
  EXPECT_EQ(moments, static_cast<int>(seeds) * 9);
  EXPECT_LE(outliers, 0.02 * moments) << "of " << moments;
}

// Samples with small hidden weights, and a chain of all samples.
TEST(SamplePosterior, LogisticRegressionAgreesWithOneLongChain) {
  SampleTable table;
  table.name = "test", table.features = 2;
  RandomStream random(21);
  for (int i = 0; i < (thorough() ? 8000 : 1000); ++i) {
    double z = 0.2;
    for (int j = 0; j < 2; ++j) {
      table.values.push_back(random.normal());
      z += (0.4 - 0.7 * j) * table.values.back();
    }
    table.labels.push_back(random.uniform() < 1 / (1 + std::exp(-z)) ? 1 : 0);
  }
  make_binary(table, std::nullopt);
  const LogisticPosterior posterior(table, 1);
  const auto group = make_single_group();
  McmcOptions options = quick(1);
  options.draws = thorough() ? 3000 : 600;
  options.chain.warmup = 200;
  const McmcParts parts{.group = *group, .posterior = posterior, .clock = kClock};
  const Moments whole = moments_of(sample_posterior(options, parts).sub_posteriors[0].draws);
  options.sub_posteriors = 4;
  const McmcResult result = sample_posterior(options, parts);
  std::vector<PosteriorDraws> draws;
  for (const SubPosteriorResult& part : result.sub_posteriors) {
    EXPECT_LT(part.largest_r_hat, 1.05);
    EXPECT_GT(part.smallest_size, thorough() ? 600 : 100);
    draws.push_back(part.draws);
  }
  // The error of kernels in three dimensions is larger than that of the parametric estimator.
  const double bound = thorough() ? 0.1 : 0.5, wide = thorough() ? 0.35 : 1;
  const Moments& parametric = result.combined.moments;
  const Moments semiparametric = combine_draws(Combination::kSemiparametric, draws, 1).moments;
  for (size_t j = 0; j < 3; ++j) {
    const double deviation = whole.deviation(j);
    EXPECT_NEAR((parametric.mean[j] - whole.mean[j]) / deviation, 0, bound) << j;
    EXPECT_NEAR(parametric.deviation(j) / deviation, 1, bound) << j;
    EXPECT_NEAR((semiparametric.mean[j] - whole.mean[j]) / deviation, 0, wide) << j;
    EXPECT_NEAR(semiparametric.deviation(j) / deviation, 1, wide) << j;
  }
}

// p ranks, M sub-posteriors and T draws of d parameters. M₀ of the sub-posteriors are those of rank 0.
uint64_t bytes_of(uint64_t p, uint64_t m, uint64_t m0, uint64_t t, uint64_t d) {
  return 24 * p * (p - 1) + 64 * (p - 1) + (m - m0) * (56 + 8 * t * d);
}

TEST(SamplePosterior, NoByteIsSentWhileRanksSampleAndNoBitDependsOnTheirNumber) {
  const GaussianPosterior posterior({.dimensions = 3, .samples = 100});
  for (const Combination combination : {Combination::kParametric, Combination::kSemiparametric}) {
    McmcOptions options = quick(7);
    options.combination = combination;
    const JobOutcome one = run_job(1, options, posterior);
    EXPECT_EQ(one.sent, 0);
    EXPECT_EQ(one.result.combined.draws.count(), 60);
    for (const int ranks : {2, 3, 7}) {
      const JobOutcome job = run_job(ranks, options, posterior);
      EXPECT_EQ(all_draws(job.result), all_draws(one.result)) << ranks;
      const McmcBytes& bytes = job.result.bytes;
      EXPECT_EQ(bytes.sampling, 0);
      EXPECT_EQ(bytes.start + bytes.gathering,
                bytes_of(static_cast<uint64_t>(ranks), 7, static_cast<uint64_t>(7 / ranks), 60, 3));
      EXPECT_EQ(job.sent, bytes.start + bytes.gathering);
    }
  }
  EXPECT_EQ(sub_posteriors_of({}, 3), 3);
}

TEST(SamplePosterior, AnInterruptedRunGoesOnBitByBitOnAnyNumberOfRanks) {
  const GaussianPosterior posterior({.dimensions = 2, .samples = 100});
  for (const Sampler sampler : {Sampler::kHmc, Sampler::kRandomWalk}) {
    const TempDir dir;
    McmcOptions options = quick(4);
    options.chain.sampler = sampler;
    const std::vector<double> whole = all_draws(run_job(1, options, posterior).result);
    options.checkpoint = dir.file("mcmc");
    options.checkpoint_every = 50;
    JobOutcome job = run_job(2, options, posterior, {105, 0});  // rank 1 ends
    EXPECT_EQ(job.interrupted, (std::vector<bool>{true, true}));
    EXPECT_TRUE(job.result.combined.draws.values.empty());
    job = run_job(3, options, posterior, {10, 200, 5});
    EXPECT_EQ(job.interrupted, (std::vector<bool>{true, true, true}));
    for (const int ranks : {2, 1}) {
      job = run_job(ranks, options, posterior);
      EXPECT_EQ(all_draws(job.result), whole);
    }
    for (const SubPosteriorResult& part : job.result.sub_posteriors) EXPECT_EQ(part.resumed_from, 140);
    EXPECT_EQ(job.result.bytes.sampling, 0);
    // A longer run begins with the same draws.
    options.draws = 100;
    const McmcResult longer = run_job(2, options, posterior).result;
    options.checkpoint.clear();
    EXPECT_EQ(all_draws(longer), all_draws(run_job(2, options, posterior).result));
    options.checkpoint = dir.file("mcmc");
    options.draws = 60;
    EXPECT_EQ(all_draws(run_job(2, options, posterior).result), whole);
  }
}

// Returns the message that every rank's call throws.
std::vector<std::string> faults_of(int ranks, const std::function<McmcOptions(int)>& options,
                                   const Posterior& posterior) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const ThreadRank& self) {
    const auto group = join_group(*self.store, self.rank, self.size);
    try {
      sample_posterior(options(self.rank), {.group = *group, .posterior = posterior, .clock = kClock});
      ADD_FAILURE() << "no error on rank " << self.rank;
    } catch (const Error& error) {
      messages[static_cast<size_t>(self.rank)] = error.what();
    }
  });
  return messages;
}

TEST(SamplePosterior, ACheckpointOfAnotherProblemIsRefusedByAllRanks) {
  const GaussianPosterior posterior({.dimensions = 2, .samples = 100});
  const TempDir dir;
  McmcOptions options = quick(2);
  options.checkpoint = dir.path();
  run_job(2, options, posterior);
  options.seed = 4;
  for (const std::string& message : faults_of(2, [&](int) { return options; }, posterior))
    EXPECT_THAT(message, HasSubstr("seed is 3 there and 4 here"));
  options.seed = 3;
  const GaussianPosterior other({.dimensions = 2, .samples = 100, .seed = 1});
  for (const std::string& message : faults_of(2, [&](int) { return options; }, other))
    EXPECT_THAT(message, HasSubstr("data is"));
}

// The ranks do not talk to each other while they sample, so each of them must look at the lock.
TEST(SamplePosterior, ARunThatHasLostItsLockWritesNothing) {
  const GaussianPosterior posterior({.dimensions = 2, .samples = 100});
  for (const int rank : {0, 1}) {
    const TempDir dir;
    McmcOptions options = quick(2);
    options.checkpoint = dir.path();
    options.checkpoint_every = 20;
    run_ranks(2, [&](const ThreadRank& self) {
      const auto group = join_group(*self.store, self.rank, self.size);
      McmcParts parts{.group = *group, .posterior = posterior, .clock = kClock};
      parts.on_transition = [&](int64_t number) {
        if (self.rank != rank) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        if (self.rank == rank && number == 10) take_lock_elsewhere(dir.path());
      };
      EXPECT_THAT(error_of([&] { sample_posterior(options, parts); }),
                  HasSubstr("process 1 on elsewhere has taken over the folder"));
    });
    for (const char* number : {"0", "1"})
      EXPECT_FALSE(std::filesystem::exists(dir.file(fmt::format("sub-posterior-{}-of-2/job.json", number))));
  }
}

TEST(SamplePosterior, RanksWithOtherOptionsAreRefused) {
  const GaussianPosterior posterior({.dimensions = 2, .samples = 100});
  const auto options = [](int rank) {
    McmcOptions own = quick(3);
    own.draws += rank;
    return own;
  };
  for (const std::string& message : faults_of(3, options, posterior))
    EXPECT_THAT(message, HasSubstr("rank 1 has other options"));
  EXPECT_THROW(check_mcmc(quick(2), 3), ConfigError);
  McmcOptions few = quick(3);
  few.draws = 3;
  EXPECT_THROW(check_mcmc(few, 3), ConfigError);
}

// A density that becomes NaN for the samples of the last rank, away from the start.
class Broken final : public Posterior {
 public:
  int64_t dimensions() const override { return 1; }
  int64_t samples() const override { return 2; }
  double log_prior(std::span<const double> x, std::span<double> gradient) const override {
    if (!gradient.empty()) gradient[0] = -x[0];
    return -x[0] * x[0] / 2;
  }
  double log_likelihood(std::span<const double> x, int64_t, int64_t end,
                        std::span<double> gradient) const override {
    if (!gradient.empty()) gradient[0] = 0;
    return end == 2 && x[0] > 2 ? std::nan("") : 0;
  }
};

// A posterior whose functions count wrongly.
class Miscounted final : public Posterior {
 public:
  Miscounted(int64_t samples, size_t numbers) : samples_(samples), numbers_(numbers) {}
  int64_t dimensions() const override { return 2; }
  int64_t samples() const override { return samples_; }
  double log_prior(std::span<const double>, std::span<double>) const override { return 0; }
  double log_likelihood(std::span<const double>, int64_t, int64_t, std::span<double>) const override {
    return 0;
  }
  std::vector<double> start() const override { return std::vector<double>(numbers_); }

 private:
  int64_t samples_;
  size_t numbers_;
};

TEST(SamplePosterior, WrongNumbersOfAPosteriorAreRefusedByAllRanks) {
  const auto options = [](int) { return quick(2); };
  for (const std::string& message : faults_of(2, options, Miscounted(-1, 2)))
    EXPECT_THAT(message, HasSubstr("-1 samples; return 0 or more"));
  for (const std::string& message : faults_of(2, options, Miscounted(10, 1)))
    EXPECT_THAT(message, HasSubstr("has 1 numbers for 2 parameters"));
}

// Without this, rank 0 would wait for rank 1.
TEST(SamplePosterior, ARankWithAnUnusableDensityEndsTheOthers) {
  McmcOptions options = quick(2);
  options.draws = 2000;
  const std::vector<std::string> messages = faults_of(2, [&](int) { return options; }, Broken());
  EXPECT_THAT(messages[1], HasSubstr("sub-posterior 1 of 2: the logarithm of the density is"));
  EXPECT_THAT(messages[0], HasSubstr("sub-posterior 1 of 2"));
}

}  // namespace
}  // namespace starling
