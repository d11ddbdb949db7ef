#include "starling/nn/layers/conv_im2col.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "starling/nn/model.h"
#include "starling/torch_testing/tensor_difference.h"

namespace starling {
namespace {

// The header's example: a kernel of 2×2 with stride 1 on i11 … i33, and filters k1, k2.
TEST(Im2col, RowsArePatchesAndColumnsAreFilters) {
  const at::Tensor picture =
      torch::tensor({{11, 12, 13}, {21, 22, 23}, {31, 32, 33}}).to(torch::kDouble).unsqueeze(0);
  const at::Tensor v = image_patches(picture, 2, 2, {});
  const at::Tensor expected =
      torch::tensor({{11, 12, 21, 22}, {12, 13, 22, 23}, {21, 22, 31, 32}, {22, 23, 32, 33}})
          .to(torch::kDouble);
  EXPECT_TRUE(torch::equal(v, expected));

  const at::Tensor k =
      torch::tensor({{1, 0}, {-1, 2}, {3, 0}, {0, 5}}).to(torch::kDouble);  // k1, k2 are its columns
  const at::Tensor answer = im2col_conv2d(picture.unsqueeze(0), k.t().reshape({2, 1, 2, 2}), {}, {});
  EXPECT_TRUE(torch::equal(answer.flatten(2)[0].t(), v.matmul(k)));
  EXPECT_EQ(answer[0][0][0][0].item<double>(), 11 - 12 + 3 * 21);
}

struct Case {
  std::vector<int64_t> input, weight;
  ConvGeometry g;
  bool bias = true;
};

std::vector<at::Tensor> answer_and_gradients(const std::vector<at::Tensor>& leaves, const at::Tensor& y,
                                             const at::Tensor& dy) {
  std::vector<at::Tensor> all = torch::autograd::grad({y}, leaves, {dy});
  all.insert(all.begin(), y.detach());
  return all;
}

TEST(Im2col, EqualsLibtorchForwardAndBackward) {
  const std::vector<Case> cases = {
      {{2, 3, 8, 9}, {4, 3, 3, 3}, {}, true},
      {{1, 1, 28, 28}, {6, 1, 5, 5}, {{1, 1}, {2, 2}, {1, 1}}, true},
      {{3, 3, 31, 29}, {8, 3, 11, 11}, {{4, 4}, {2, 2}, {1, 1}}, true},
      {{2, 5, 7, 7}, {6, 5, 1, 1}, {{2, 2}, {0, 0}, {1, 1}}, false},
      {{2, 2, 9, 12}, {3, 2, 3, 2}, {{2, 1}, {1, 0}, {1, 2}}, false},
  };
  torch::manual_seed(1);
  for (const Case& c : cases) {
    const auto f64 = torch::dtype(torch::kDouble).requires_grad(true);
    std::vector<at::Tensor> leaves = {torch::randn(c.input, f64), torch::randn(c.weight, f64)};
    if (c.bias) leaves.push_back(torch::randn({c.weight[0]}, f64));
    const at::Tensor bias = c.bias ? leaves[2] : at::Tensor();
    const at::Tensor ours = im2col_conv2d(leaves[0], leaves[1], bias, c.g);
    const at::Tensor theirs = at::conv2d(leaves[0], leaves[1], bias, c.g.stride, c.g.padding, c.g.dilation);
    ASSERT_EQ(ours.sizes(), theirs.sizes());
    const at::Tensor dy = torch::randn_like(theirs);
    const auto got = answer_and_gradients(leaves, ours, dy), want = answer_and_gradients(leaves, theirs, dy);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_LT(relative_difference(got[i], want[i]), 1e-12) << i;
  }
}

TEST(Im2col, TakesStridedInputsAndWeights) {
  const at::Tensor x = torch::randn({2, 4, 6, 6}, torch::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor w = torch::randn({3, 4, 3, 3}, torch::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_LT(relative_difference(im2col_conv2d(x, w, {}, {}), at::conv2d(x, w)), 1e-12);
  const at::Tensor leaf = w.clone().requires_grad_();
  const at::Tensor y = im2col_conv2d(x, leaf, {}, {});
  y.sum().backward();  // a gradient whose strides are all 0
  EXPECT_LT(relative_difference(leaf.grad().sum(), x.unfold(2, 3, 1).unfold(3, 3, 1).sum() * 3), 1e-12);
}

std::vector<at::Tensor> trained(const std::string& name, const ModelShape& shape) {
  ModelSpec spec;
  spec.name = name;
  torch::manual_seed(5);
  const Model model = zoo_model(spec, shape)();
  model.module->to(torch::kDouble);
  std::vector<int64_t> batch = shape.input_shape;
  batch.insert(batch.begin(), 3);
  const at::Tensor y = model.forward(torch::randn(batch, torch::kDouble));
  model.loss(y, torch::arange(3)).backward();
  std::vector<at::Tensor> all = {y.detach()};
  for (const auto& p : model.module->parameters()) all.push_back(p.grad());
  return all;
}

TEST(Im2col, ReplacesTheConvolutionsOfAnyModelWhileItLives) {
  const std::vector<std::pair<std::string, ModelShape>> models = {{"lenet5", {{1, 28, 28}, 10, false}},
                                                                  {"resnet18", {{3, 16, 16}, 10, false}}};
  for (const auto& [name, shape] : models) {
    const auto want = trained(name, shape);
    std::vector<at::Tensor> got;
    {
      const Im2colConvolution im2col;
      got = trained(name, shape);
      const at::Tensor x = torch::randn({1, 1, 4, 4}, torch::requires_grad());
      EXPECT_EQ(at::conv2d(x, torch::ones({1, 1, 2, 2})).grad_fn()->name().find("Convolution"),
                std::string::npos);
    }
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(relative_difference(got[i], want[i]), 1e-9) << name << i;
    const at::Tensor x = torch::randn({1, 1, 4, 4}, torch::requires_grad());
    EXPECT_NE(at::conv2d(x, torch::ones({1, 1, 2, 2})).grad_fn()->name().find("Convolution"),
              std::string::npos);
  }
}

TEST(Im2col, LeavesTheOthersToLibtorch) {
  const at::Tensor x = torch::randn({2, 4, 6, 6}, torch::kDouble),
                   line = torch::randn({2, 4, 9}, torch::kDouble);
  const at::Tensor w = torch::randn({4, 2, 3, 3}, torch::dtype(torch::kDouble).requires_grad(true));
  const at::Tensor w1 = torch::randn({3, 4, 3}, torch::kDouble);
  const auto both = [&] {
    const at::Tensor y = at::conv2d(x, w, at::Tensor(), 1, at::IntArrayRef({0, 0}), 1, /*groups=*/2);
    return std::vector<at::Tensor>{y.detach(), torch::autograd::grad({y.sum()}, {w})[0],
                                   at::conv1d(line, w1)};
  };
  const auto want = both();
  const Im2colConvolution im2col;
  const auto got = both();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
}

}  // namespace
}  // namespace starling
