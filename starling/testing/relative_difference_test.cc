#include "starling/testing/relative_difference.h"

#include <gtest/gtest.h>

#include <vector>

namespace starling {
namespace {

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  return relative_difference<float>(a, b);
}

TEST(RelativeDifference, IsTheNormOfTheDifferenceOverTheNorm) {
  EXPECT_DOUBLE_EQ(difference({3, 4}, {3, 4}), 0);
  EXPECT_DOUBLE_EQ(difference({3, 4.5}, {3, 4}), 0.1);
  EXPECT_DOUBLE_EQ(difference({0, 0}, {0, 0}), 0);
}

TEST(RelativeDifference, NothingPassesForEqualThatIsNot) {
  EXPECT_TRUE(std::isinf(difference({1}, {0})));
  EXPECT_TRUE(std::isinf(difference({1}, {1, 1})));
  EXPECT_TRUE(std::isinf(difference({NAN}, {1})));
  EXPECT_TRUE(std::isinf(difference({1}, {NAN})));
  EXPECT_TRUE(std::isinf(difference({INFINITY}, {INFINITY})));
}

}  // namespace
}  // namespace starling
