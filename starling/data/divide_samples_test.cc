#include "starling/data/divide_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace starling {
namespace {

using ::testing::ElementsAre;

TEST(DivideSamples, IsProportional) {
  EXPECT_THAT(divide_samples(66, {2, 1}), ElementsAre(44, 22));
  EXPECT_THAT(divide_samples(60, {0.5, 0.25, 0.25}), ElementsAre(30, 15, 15));
  EXPECT_THAT(divide_samples(12, {1}), ElementsAre(12));
}

TEST(DivideSamples, RoundsByTheLargestRemainder) {
  EXPECT_THAT(divide_samples(64, {2, 1}), ElementsAre(43, 21));      // 42.7, 21.3
  EXPECT_THAT(divide_samples(10, {3, 3, 1}), ElementsAre(4, 4, 2));  // 4.29, 4.29, 1.43
  EXPECT_THAT(divide_samples(64, {1, 1, 1}),
              ElementsAre(22, 21, 21));  // of equal remainders the lower rank wins
}

TEST(DivideSamples, KeepsNumbersThatAddUp) {
  EXPECT_THAT(divide_samples(64, {43, 21}), ElementsAre(43, 21));
  EXPECT_THAT(divide_samples(97, {31, 1, 65}), ElementsAre(31, 1, 65));
}

TEST(DivideSamples, EveryRankHasTheLeastNumber) {
  EXPECT_THAT(divide_samples(8, {1000, 1, 1}), ElementsAre(6, 1, 1));
  EXPECT_THAT(divide_samples(12, {1000, 1}, 4), ElementsAre(8, 4));
  EXPECT_THAT(divide_samples(3, {1000, 1, 1}), ElementsAre(1, 1, 1));
  EXPECT_THAT(divide_samples(8, {10, 10, 1}, 2), ElementsAre(3, 3, 2));
}

// The last batch of an epoch may hold fewer samples than there are ranks.
TEST(DivideSamples, FewerSamplesThanRanks) {
  EXPECT_THAT(divide_samples(2, {1, 2, 3}), ElementsAre(0, 1, 1));
  EXPECT_THAT(divide_samples(5, {1, 1}, 4), ElementsAre(3, 2));
  EXPECT_THAT(divide_samples(0, {1, 2}), ElementsAre(0, 0));
}

TEST(DivideSamples, AddsUpForAnyParts) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> parts(1 + random() % 9);
    for (double& part : parts) part = 1e-3 + static_cast<double>(random() % 1000);
    const int64_t least = 1 + static_cast<int64_t>(random() % 3);
    const auto ranks = static_cast<int64_t>(parts.size());
    const int64_t samples = least * ranks + static_cast<int64_t>(random() % 300);
    const std::vector<int64_t> counts = divide_samples(samples, parts, least);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), samples);
    const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    for (size_t r = 0; r < counts.size(); ++r) {
      EXPECT_GE(counts[r], least);
      const double exact = static_cast<double>(samples) * parts[r] / sum;
      EXPECT_LT(static_cast<double>(counts[r]), std::max(exact, static_cast<double>(least)) + 1);
    }
  }
}

}  // namespace
}  // namespace starling
