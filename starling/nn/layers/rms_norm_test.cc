#include "starling/nn/layers/rms_norm.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

namespace starling {
namespace {

TEST(RmsNorm, DividesByTheRootOfTheMeanSquare) {
  const at::Tensor x = torch::tensor({{3.0, 4.0}, {0.0, 2.0}}, torch::kDouble);
  const at::Tensor y = rms_norm(x, torch::tensor({1.0, 10.0}, torch::kDouble), 0.5);
  EXPECT_NEAR(y[0][0].item<double>(), 3 / std::sqrt(13.0), 1e-15);  // (9 + 16) / 2 + 0.5
  EXPECT_NEAR(y[0][1].item<double>(), 40 / std::sqrt(13.0), 1e-14);
  EXPECT_EQ(y[1][0].item<double>(), 0);
  EXPECT_NEAR(y[1][1].item<double>(), 20 / std::sqrt(2.5), 1e-14);
}

struct RmsCase {
  at::ScalarType type;
  double tolerance;
};

TEST(RmsNorm, EqualsAtenForwardAndBackward) {
  for (const RmsCase& c :
       {RmsCase{at::kDouble, 1e-13}, RmsCase{at::kFloat, 1e-5}, RmsCase{at::kBFloat16, 0.05}}) {
    torch::manual_seed(6);
    std::vector<at::Tensor> ours = {torch::randn({2, 5, 33}), torch::randn({33})}, theirs;
    theirs.reserve(ours.size());
    for (at::Tensor& x : ours) {
      x = x.to(c.type).requires_grad_();
      theirs.push_back(x.detach().clone().requires_grad_());
    }
    const at::Tensor got = rms_norm(ours[0], ours[1], 1e-5);
    const at::Tensor want = rms_norm_reference(theirs[0], theirs[1], 1e-5);
    EXPECT_EQ(got.scalar_type(), c.type);
    EXPECT_LE((got - want).abs().max().item<double>(), c.tolerance) << c10::toString(c.type);
    const at::Tensor up = torch::randn(got.sizes()).to(c.type);
    got.backward(up);
    want.backward(up);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].grad().scalar_type(), c.type);
      EXPECT_LE((ours[i].grad() - theirs[i].grad()).abs().max().item<double>(), c.tolerance)
          << c10::toString(c.type) << " " << i;
    }
  }
}

// A row of zeros has finite gradients.
TEST(RmsNorm, TakesZeros) {
  const at::Tensor x = torch::zeros({1, 4}).requires_grad_(), weight = torch::ones({4});
  rms_norm(x, weight, 1e-5).sum().backward();
  EXPECT_NEAR(x.grad()[0][0].item<double>(), 1 / std::sqrt(1e-5), 1e-2);
}

}  // namespace
}  // namespace starling
