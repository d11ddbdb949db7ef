#include "starling/nn/layers/keyed_dropout.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace starling {
namespace {

SampleKeys keys(std::vector<int64_t> values) {
  return {torch::tensor(values, at::kLong)};
}

TEST(KeyedDropout, EqualsTheMaskOfTheReference) {
  torch::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor x = torch::randn({3, 5, 7}).to(type);  // an odd number of elements per sample
    const SampleKeys samples = keys({4, -9, 1LL << 60});
    const at::Tensor y = keyed_dropout(x, 0.3, samples, 2);
    const at::Tensor mask = keyed_dropout_mask_reference(x.to(at::kDouble), 0.3, samples, 2);
    EXPECT_TRUE(torch::equal(y == 0, mask == 0));
    const double tolerance = type == at::kBFloat16 ? 1e-2 : type == at::kFloat ? 1e-6 : 1e-15;
    EXPECT_LT((y.to(at::kDouble) - x.to(at::kDouble) * mask).abs().max().item<double>(), tolerance * 5);
  }
}

TEST(KeyedDropout, TheGradientHasTheSameMask) {
  const at::Tensor x = torch::randn({2, 33}, at::kDouble).requires_grad_();
  const SampleKeys samples = keys({1, 2});
  keyed_dropout(x, 0.5, samples, 0).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), keyed_dropout_mask_reference(x, 0.5, samples, 0)));
}

TEST(KeyedDropout, ARowDependsOnItsKeyAlone) {
  const at::Tensor x = torch::ones({4, 64});
  const at::Tensor whole = keyed_dropout(x, 0.5, keys({1, 2, 3, 2}), 7);
  EXPECT_TRUE(torch::equal(whole[1], whole[3]));
  EXPECT_FALSE(torch::equal(whole[0], whole[1]));
  EXPECT_TRUE(torch::equal(whole.narrow(0, 2, 2), keyed_dropout(x.narrow(0, 2, 2), 0.5, keys({3, 2}), 7)));
  EXPECT_FALSE(torch::equal(whole, keyed_dropout(x, 0.5, keys({1, 2, 3, 2}), 8)));
}

TEST(KeyedDropout, KeepsTheShareAndPlacesAreIndependent) {
  constexpr int64_t kCount = 1 << 20;
  const at::Tensor kept =
      keyed_dropout(torch::ones({1, kCount}), 0.1, keys({42}), 0)[0].ne(0).to(at::kDouble);
  // Five standard deviations of a share of 2^20 draws: 5 sqrt(0.1 · 0.9 / 2^20) = 0.0015.
  EXPECT_NEAR(kept.mean().item<double>(), 0.9, 0.0015);
  for (const int64_t lag : {1, 2, 3, 64}) {
    const at::Tensor both = kept.narrow(0, 0, kCount - lag) * kept.narrow(0, lag, kCount - lag);
    EXPECT_NEAR(both.mean().item<double>(), 0.81, 0.002) << lag;
  }
}

TEST(KeyedDropout, NoneAtZeroAndABugWithoutKeys) {
  const at::Tensor x = torch::randn({2, 8});
  EXPECT_TRUE(torch::equal(keyed_dropout(x, 0, keys({1, 2}), 0), x));
  EXPECT_DEATH(keyed_dropout(x, 0.5, SampleKeys{}, 0), "2 rows, but the keys of 0 samples");
}

}  // namespace
}  // namespace starling
