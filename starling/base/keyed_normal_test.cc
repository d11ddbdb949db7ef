#include "starling/base/keyed_normal.h"

#include <gtest/gtest.h>

#include <cmath>

#include "starling/base/keyed_random.h"

namespace starling {
namespace {

TEST(KeyedNormal, NumbersHaveTheMomentsOfTheStandardNormalDistribution) {
  constexpr int kCount = 100'000;
  double first = 0, second = 0, fourth = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const uint64_t key = key_of(3, i, 0);
    const double x = normal_of(std::log1p(-uniform_of(key)), uniform_of(mix64(key + kGolden)));
    first += x / kCount;
    second += x * x / kCount;
    fourth += x * x * x * x / kCount;
  }
  EXPECT_NEAR(first, 0, 0.02);
  EXPECT_NEAR(second, 1, 0.03);
  EXPECT_NEAR(fourth, 3, 0.2);
}

TEST(KeyedNormal, TheSmallestUniformNumbersGiveTheModeAndItsSide) {
  EXPECT_EQ(normal_of(0, 0.25), 0);
  EXPECT_EQ(normal_of(-0.5, 0), 1);
  EXPECT_NEAR(normal_of(-2, 0.5), -2, 1e-15);
}

}  // namespace
}  // namespace starling
