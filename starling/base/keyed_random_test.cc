#include "starling/base/keyed_random.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

// The first numbers of SplitMix64 with the seed 0, as in the reference program of Vigna (splitmix64.c).
TEST(KeyedRandom, AreTheNumbersOfSplitMix64) {
  EXPECT_EQ(mix64(kGolden), 0xE220A8397B1DCDAFULL);
  EXPECT_EQ(mix64(2 * kGolden), 0x6E789E6AA1B965F4ULL);
  EXPECT_EQ(mix64(3 * kGolden), 0x06C45D188009454FULL);
  EXPECT_EQ(mix64(4 * kGolden), 0xF88BB8A8724C81ECULL);
}

TEST(KeyedRandom, KeysDependOnTheOrderOfTheirValues) {
  EXPECT_NE(key_of(1, 2, 3), key_of(2, 1, 3));
  EXPECT_NE(key_of(1, 2, 3), key_of(1, 3, 2));
  EXPECT_EQ(key_of(1, 2, 3), mix64(mix64(mix64(1 + kGolden) + 2 + 2 * kGolden) + 3 + 3 * kGolden));
}

TEST(KeyedRandom, UniformNumbersAreBelowOne) {
  EXPECT_EQ(uniform_of(0), 0.0);
  EXPECT_EQ(uniform_of(uint64_t{1} << 63), 0.5);
  EXPECT_LT(uniform_of(~uint64_t{0}), 1.0);
}

}  // namespace
}  // namespace starling
