#include "starling/nn/layers/causal_attention.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "starling/nn/layers/causal_softmax.h"

namespace starling {
namespace {

double apart(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(torch::kDouble) - b.to(torch::kDouble)).norm() / b.to(torch::kDouble).norm()).item<double>();
}

TEST(CausalAttention, EqualsAtensOperationBothWays) {
  torch::manual_seed(1);
  // {n, t, heads, d}: one block, whole blocks, a part of a block, and a length that ATen computes (t = 24 +
  // 1).
  for (const std::vector<int64_t>& s :
       {std::vector<int64_t>{2, 16, 1, 8}, {1, 64, 3, 16}, {2, 176, 2, 24}, {3, 256, 2, 64}, {2, 25, 2, 8}}) {
    const at::Tensor x = (torch::randn({s[0], s[1], 3 * s[2] * s[3]}) * 2).requires_grad_();
    const at::Tensor exact = x.detach().to(torch::kDouble).requires_grad_();
    const at::Tensor dy = torch::randn({s[0], s[1], s[2] * s[3]});
    const at::Tensor y = causal_attention(x, s[2]), expected = causal_attention_reference(exact, s[2]);
    y.backward(dy);
    expected.backward(dy.to(torch::kDouble));
    EXPECT_LT(apart(y, expected), 2e-6) << s;
    EXPECT_LT(apart(x.grad(), exact.grad()), 4e-6) << s;
  }
}

TEST(CausalAttention, NoPositionSeesALaterOne) {
  const at::Tensor x = torch::randn({1, 128, 3 * 16});
  at::Tensor other = x.clone();
  other.narrow(1, 70, 58).normal_();
  const at::Tensor a = causal_attention(x, 2), b = causal_attention(other, 2);
  EXPECT_TRUE(torch::equal(a.narrow(1, 0, 70), b.narrow(1, 0, 70)));
  EXPECT_FALSE(torch::equal(a.narrow(1, 70, 58), b.narrow(1, 70, 58)));
}

TEST(CausalAttention, OtherTypesTakeAtensOperation) {
  const at::Tensor x = torch::randn({2, 32, 3 * 16}, torch::kDouble);
  EXPECT_TRUE(torch::equal(causal_attention(x, 2), causal_attention_reference(x, 2)));
}

TEST(CausalSoftmax, LargeScoresStayFinite) {
  std::vector<float> row(32, 1e4f);
  row[3] = 2e4f;
  softmax_row(row.data(), 20, 32);
  EXPECT_FLOAT_EQ(row[3], 1);
  for (size_t i = 20; i < 32; ++i) EXPECT_EQ(row[i], 0);
}

}  // namespace
}  // namespace starling
