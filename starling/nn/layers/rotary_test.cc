#include "starling/nn/layers/rotary.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

namespace starling {
namespace {

TEST(Rotary, TurnsPairsByTheAnglesOfThePaper) {
  const RotaryTable table(5, 4, 100.0);
  ASSERT_EQ(table.cos.sizes(), at::IntArrayRef({5, 2}));
  const at::Tensor x = torch::tensor({1.0, 2.0, 3.0, 4.0}).expand({1, 5, 4}).contiguous();
  const at::Tensor turned = rotated_qkv(x, x, x, table);
  ASSERT_EQ(turned.sizes(), at::IntArrayRef({1, 5, 12}));
  for (int64_t p = 0; p < 5; ++p) {
    for (int64_t i = 0; i < 2; ++i) {
      const double angle = static_cast<double>(p) * (i == 0 ? 1.0 : 0.1);  // 100^(-2/4) = 0.1
      const double a = 1.0 + static_cast<double>(i), b = 3.0 + static_cast<double>(i);
      for (const int64_t part : {0, 4}) {  // queries and keys
        EXPECT_NEAR(turned[0][p][part + i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-5);
        EXPECT_NEAR(turned[0][p][part + i + 2].item<double>(), b * std::cos(angle) + a * std::sin(angle),
                    1e-5);
      }
    }
    EXPECT_TRUE(torch::equal(turned[0][p].narrow(0, 8, 4), x[0][p]));  // values stay
  }
}

// 6 queries of width 4 share 1, 2, 3 or 6 keys.
TEST(Rotary, EqualsPlainOperationsForwardAndBackward) {
  torch::manual_seed(4);
  const RotaryTable table(9, 4, 10000.0);
  const auto f64 = torch::TensorOptions(torch::kDouble);
  for (const int64_t kv : {1, 2, 3, 6}) {
    std::vector<at::Tensor> a = {torch::randn({2, 7, 24}, f64), torch::randn({2, 7, 4 * kv}, f64),
                                 torch::randn({2, 7, 4 * kv}, f64)};
    std::vector<at::Tensor> b;
    b.reserve(a.size());
    for (at::Tensor& x : a) {
      b.push_back(x.clone().requires_grad_());
      x.requires_grad_();
    }
    const at::Tensor got = rotated_qkv(a[0], a[1], a[2], table);
    const at::Tensor want = rotated_qkv_reference(b[0], b[1], b[2], table);
    ASSERT_EQ(got.sizes(), want.sizes());
    EXPECT_LE((got - want).abs().max().item<double>(), 1e-14) << kv;
    const at::Tensor up = torch::randn(got.sizes(), f64);
    got.backward(up);
    want.backward(up);
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_LE((a[i].grad() - b[i].grad()).abs().max().item<double>(), 1e-13) << kv << " " << i;
  }
}

// Query head h of a group reads key and value head h / (queries per key).
TEST(Rotary, NeighboringQueriesShareAKey) {
  const RotaryTable table(1, 2, 10000.0);  // position 0 turns nothing
  const at::Tensor q = torch::arange(8, torch::kFloat).view({1, 1, 8});
  const at::Tensor k = torch::tensor({10.0, 11.0, 20.0, 21.0}).view({1, 1, 4});
  const at::Tensor qkv = rotated_qkv(q, k, -k, table).flatten();
  const at::Tensor each = torch::tensor({10.0, 11.0, 10.0, 11.0, 20.0, 21.0, 20.0, 21.0});
  EXPECT_TRUE(torch::equal(qkv.narrow(0, 0, 8), q.flatten()));
  EXPECT_TRUE(torch::equal(qkv.narrow(0, 8, 8), each));
  EXPECT_TRUE(torch::equal(qkv.narrow(0, 16, 8), -each));
}

}  // namespace
}  // namespace starling
