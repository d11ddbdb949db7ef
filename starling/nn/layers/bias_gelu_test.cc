#include "starling/nn/layers/bias_gelu.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace starling {
namespace {

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(BiasGelu, EqualsAtensOperationsBothWays) {
  torch::manual_seed(1);
  for (const int64_t n : {1, 7, 64, 1536}) {
    const at::Tensor x = (torch::randn({3, 11, n}) * 4).requires_grad_(),
                     b = torch::randn({n}).requires_grad_();
    const at::Tensor x64 = x.detach().to(torch::kDouble).requires_grad_(),
                     b64 = b.detach().to(torch::kDouble).requires_grad_();
    const at::Tensor dy = torch::randn({3, 11, n});
    const at::Tensor y = bias_gelu(x, b), exact = bias_gelu_reference(x64, b64);
    y.backward(dy);
    exact.backward(dy.to(torch::kDouble));
    EXPECT_LT(relative(y.to(torch::kDouble), exact), 1e-6) << n;
    EXPECT_LT(relative(x.grad().to(torch::kDouble), x64.grad()), 1e-6) << n;
    EXPECT_LT(relative(b.grad().to(torch::kDouble), b64.grad()), 2e-6) << n;
  }
}

TEST(BiasGelu, StaysFiniteFarOut) {
  const at::Tensor x = torch::tensor({-1e4f, -100.0f, -20.0f, 0.0f, 20.0f, 100.0f, 1e4f}).requires_grad_();
  const at::Tensor y = bias_gelu(x, torch::zeros({7}));
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(y, torch::gelu(x, "tanh"), 1e-6, 1e-6));
  EXPECT_TRUE(torch::isfinite(x.grad()).all().item<bool>());
}

TEST(BiasGelu, OtherTypesTakeAtensKernel) {
  const at::Tensor x = torch::randn({4, 8}, torch::kDouble), b = torch::randn({8}, torch::kDouble);
  EXPECT_TRUE(torch::equal(bias_gelu(x, b), bias_gelu_reference(x, b)));
}

}  // namespace
}  // namespace starling
