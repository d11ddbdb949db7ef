#include "starling/nn/layers/linear.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

namespace starling {
namespace {

class LinearLayouts : public ::testing::TestWithParam<WeightLayout> {};

TEST_P(LinearLayouts, EqualsTheReferenceForwardAndBackward) {
  const bool in_out = GetParam() == WeightLayout::kInOut;
  for (const bool with_bias : {true, false}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 7}, {2, 3, 7}}) {
      const auto f64 = torch::dtype(torch::kDouble).requires_grad(true);
      const at::Tensor x = torch::randn(shape, f64);
      const at::Tensor w = in_out ? torch::randn({7, 4}, f64) : torch::randn({4, 7}, f64);
      const at::Tensor b = with_bias ? torch::randn({4}, f64) : at::Tensor();
      std::vector<at::Tensor> leaves = {x, w};
      if (with_bias) leaves.push_back(b);
      const at::Tensor y = linear(x, w, b, GetParam()), expected = linear_reference(x, w, b, GetParam());
      ASSERT_EQ(y.sizes(), expected.sizes());
      EXPECT_LT((y - expected).abs().max().item<double>(), 1e-12);
      const at::Tensor dy = torch::randn_like(y);
      const auto got = torch::autograd::grad({y}, leaves, {dy});
      const auto want = torch::autograd::grad({expected}, leaves, {dy});
      for (size_t i = 0; i < leaves.size(); ++i)
        EXPECT_LT((got[i] - want[i]).abs().max().item<double>(), 1e-12);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearLayouts, ::testing::Values(WeightLayout::kOutIn, WeightLayout::kInOut));

}  // namespace
}  // namespace starling
