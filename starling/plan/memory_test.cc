#include "starling/plan/memory.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

// Rajbhandari et al. 2020, figure 1: 7.5 B parameters on 64 ranks, mixed-precision Adam.
TEST(Memory, IsThatOfThePaper) {
  const ElementBytes mixed = element_bytes(Precision::kBf16, 2);
  const double expected[] = {120, 31.4, 16.6, 1.88};
  for (int stage = 0; stage <= 3; ++stage)
    EXPECT_NEAR(zero_state_bytes(mixed, 7.5e9, 64, stage).total() / 1e9, expected[stage], 0.05) << stage;
}

TEST(Memory, IsSixteenTerabytesOfATrillionOverAllRanks) {
  const ElementBytes mixed = element_bytes(Precision::kBf16, 2);
  EXPECT_DOUBLE_EQ(zero_state_bytes(mixed, 1e12 / 50, 16, 3).total(), 16e12 / 800);
}

TEST(Memory, CountsTheStatesOfTheRule) {
  const ElementBytes adam = element_bytes(Precision::kFp32, 2);
  EXPECT_DOUBLE_EQ(zero_state_bytes(adam, 100, 4, 0).total(), 1600);
  EXPECT_DOUBLE_EQ(zero_state_bytes(adam, 100, 4, 1).total(), 800 + 200);
  EXPECT_DOUBLE_EQ(zero_state_bytes(adam, 100, 4, 2).total(), 400 + 300);
  EXPECT_DOUBLE_EQ(zero_state_bytes(adam, 100, 4, 3).total(), 400);
  EXPECT_DOUBLE_EQ(zero_state_bytes(element_bytes(Precision::kFp64, 0), 100, 4, 1).optimizer, 0);
}

TEST(Memory, TrafficGrowsByHalfWithStageThree) {
  EXPECT_DOUBLE_EQ(zero_traffic_elements(100, 4, 0), 150);
  EXPECT_DOUBLE_EQ(zero_traffic_elements(100, 4, 2), 150);
  EXPECT_DOUBLE_EQ(zero_traffic_elements(100, 4, 3), 225);
  EXPECT_DOUBLE_EQ(zero_traffic_elements(100, 1, 3), 0);
  EXPECT_DOUBLE_EQ(zero_traffic_elements(100, 4, 1, 5), 150);
  EXPECT_DOUBLE_EQ(zero_traffic_elements(100, 4, 2, 5), 450);
  EXPECT_DOUBLE_EQ(zero_traffic_elements(100, 4, 3, 5), 1125);
}

}  // namespace
}  // namespace starling
