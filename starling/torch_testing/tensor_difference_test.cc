#include "starling/torch_testing/tensor_difference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace starling {
namespace {

TEST(TensorDifference, IsTheNormInAnyLayoutAndType) {
  const auto e = at::tensor({3.0, 4.0}, at::kFloat);
  EXPECT_DOUBLE_EQ(relative_difference(e, e), 0);
  EXPECT_DOUBLE_EQ(relative_difference(at::tensor({3.0, 4.5}, at::kDouble), e), 0.1);
  const auto m = at::arange(6, at::kDouble).reshape({2, 3});
  EXPECT_DOUBLE_EQ(relative_difference(m.t().contiguous().t(), m), 0);
  EXPECT_TRUE(std::isinf(relative_difference(m, m.t())));
  EXPECT_TRUE(std::isinf(relative_difference(m + NAN, m)));
}

TEST(TensorDifference, NamesTheTensorThatDiffersMost) {
  const auto one = at::ones({2});
  const auto found =
      largest_difference({{"a", one}, {"b", one * 1.5}, {"c", one}}, {{"a", one}, {"b", one}, {"c", one}});
  EXPECT_EQ(found.name, "b");
  EXPECT_DOUBLE_EQ(found.difference, 0.5);
  EXPECT_EQ(largest_difference({{"a", one}}, {{"a", one}}).difference, 0);
}

TEST(TensorDifference, ANameOfOneSideDiffersByInfinity) {
  const auto one = at::ones({1});
  EXPECT_EQ(largest_difference({{"a", one}}, {{"a", one}, {"b", one}}).name, "b");
  EXPECT_TRUE(std::isinf(largest_difference({{"a", one}, {"z", one}}, {{"a", one}}).difference));
}

}  // namespace
}  // namespace starling
