#include "starling/nn/layers/locally_connected.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "starling/base/error.h"
#include "starling/torch_testing/tensor_difference.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr double kRounding = 1e-13;  // of sums in another order

// A layer in fp64 with its input, and the gradient of the output.
struct LocalCase {
  LocallyConnectedOptions options;
  at::Tensor x, weight, bias, dy;

  LocalCase(const LocallyConnectedOptions& given, int64_t samples) : options(given) {
    at::manual_seed(3);
    const ImageWindows& w = options.windows;
    const int64_t rows = w.positions(options.height), columns = w.positions(options.width);
    x = at::randn({samples, options.channels, options.height, options.width}, at::kDouble);
    weight = at::randn({rows, columns, options.maps, options.channels * w.size * w.size}, at::kDouble);
    bias = at::randn({rows, columns, options.maps}, at::kDouble);
    dy = at::randn({samples, options.maps, rows, columns}, at::kDouble);
  }
};

// Calls visit(n, o, i, j, k, c, r, s) for each product of the layer: W[i, j, o, k] x[n, c, r, s] is a part of
// y[n, o, i, j].
template <typename Visit>
void for_each_product(const LocalCase& test, const Visit& visit) {
  const ImageWindows& w = test.options.windows;
  for (int64_t n = 0; n < test.x.size(0); ++n)
    for (int64_t o = 0; o < test.options.maps; ++o)
      for (int64_t i = 0; i < test.dy.size(2); ++i)
        for (int64_t j = 0; j < test.dy.size(3); ++j)
          for (int64_t c = 0, k = 0; c < test.options.channels; ++c)
            for (int64_t u = 0; u < w.size; ++u)
              for (int64_t v = 0; v < w.size; ++v, ++k) {
                const int64_t r = i * w.stride - w.padding + u, s = j * w.stride - w.padding + v;
                if (r >= 0 && r < test.options.height && s >= 0 && s < test.options.width)
                  visit(n, o, i, j, k, c, r, s);
              }
}

// What the layer and its backward pass compute, by plain loops.
struct PlainResult {
  at::Tensor y, dx, dweight, dbias;
};
PlainResult plain_layer(const LocalCase& test) {
  PlainResult result{at::zeros_like(test.dy), at::zeros_like(test.x), at::zeros_like(test.weight),
                     at::zeros_like(test.bias)};
  const auto x = test.x.accessor<double, 4>(), w = test.weight.accessor<double, 4>(),
             dy = test.dy.accessor<double, 4>();
  const auto bias = test.bias.accessor<double, 3>();
  auto y = result.y.accessor<double, 4>(), dx = result.dx.accessor<double, 4>(),
       dw = result.dweight.accessor<double, 4>();
  auto db = result.dbias.accessor<double, 3>();
  for (int64_t n = 0; n < dy.size(0); ++n)
    for (int64_t o = 0; o < dy.size(1); ++o)
      for (int64_t i = 0; i < dy.size(2); ++i)
        for (int64_t j = 0; j < dy.size(3); ++j) {
          y[n][o][i][j] = bias[i][j][o];
          db[i][j][o] += dy[n][o][i][j];
        }
  for_each_product(
      test, [&](int64_t n, int64_t o, int64_t i, int64_t j, int64_t k, int64_t c, int64_t r, int64_t s) {
        y[n][o][i][j] += w[i][j][o][k] * x[n][c][r][s];
        dx[n][c][r][s] += w[i][j][o][k] * dy[n][o][i][j];
        dw[i][j][o][k] += x[n][c][r][s] * dy[n][o][i][j];
      });
  return result;
}

LocallyConnected2d layer_of(const LocalCase& test) {
  LocallyConnected2d layer(test.options);
  layer->to(at::kDouble);
  at::NoGradGuard no_grad;
  layer->weight.copy_(test.weight);
  layer->bias.copy_(test.bias);
  return layer;
}

std::vector<LocallyConnectedOptions> cases() {
  return {{.channels = 1, .height = 5, .width = 5, .maps = 1, .windows = {3, 1, 0}},
          {.channels = 3, .height = 8, .width = 11, .maps = 4, .windows = {4, 1, 0}},
          {.channels = 2, .height = 9, .width = 7, .maps = 3, .windows = {3, 2, 1}},
          {.channels = 2, .height = 7, .width = 10, .maps = 2, .windows = {2, 3, 0}},
          {.channels = 3, .height = 6, .width = 6, .maps = 5, .windows = {5, 1, 2}}};
}

TEST(LocallyConnected, IsWhatPlainLoopsCompute) {
  for (const LocallyConnectedOptions& options : cases()) {
    const LocalCase test(options, 3);
    LocallyConnected2d layer = layer_of(test);
    const at::Tensor x = test.x.clone().requires_grad_();
    const at::Tensor y = layer->forward(x);
    y.backward(test.dy);
    const PlainResult plain = plain_layer(test);
    EXPECT_LT(relative_difference(y.detach(), plain.y), kRounding);
    EXPECT_LT(relative_difference(x.grad(), plain.dx), kRounding);
    EXPECT_LT(relative_difference(layer->weight.grad(), plain.dweight), kRounding);
    EXPECT_LT(relative_difference(layer->bias.grad(), plain.dbias), kRounding);
  }
}

// The adjoint of a map is its backward pass in x. Its own backward pass is the map.
TEST(LocallyConnected, TheAdjointIsWhatPlainLoopsCompute) {
  for (const LocallyConnectedOptions& options : cases()) {
    const LocalCase test(options, 2);
    LocallyConnected2d layer = layer_of(test);
    at::Tensor y = test.dy.clone().requires_grad_();
    const at::Tensor decoded = layer->adjoint(y);
    const PlainResult plain = plain_layer(test);
    EXPECT_LT(relative_difference(decoded.detach(), plain.dx), kRounding);
    decoded.backward(test.x);
    LocalCase without_bias(options, 2);
    without_bias.bias.zero_();
    EXPECT_LT(relative_difference(y.grad(), plain_layer(without_bias).y), kRounding);
    EXPECT_LT(relative_difference(layer->weight.grad(), plain.dweight), kRounding);
  }
}

TEST(LocallyConnected, OneFilterEverywhereIsAConvolution) {
  const LocalCase test({.channels = 3, .height = 9, .width = 8, .maps = 4, .windows = {3, 2, 1}}, 2);
  LocallyConnected2d layer = layer_of(test);
  at::NoGradGuard no_grad;
  layer->weight.copy_(test.weight.select(0, 0).select(0, 0).expand_as(test.weight));
  layer->bias.zero_();
  const at::Tensor kernel = layer->weight.select(0, 0).select(0, 0).reshape({4, 3, 3, 3});
  EXPECT_LT(relative_difference(layer->forward(test.x), at::conv2d(test.x, kernel, {}, 2, 1)), kRounding);
}

TEST(LocallyConnected, InitialFiltersDependOnTheirPositionAlone) {
  at::Tensor whole = at::empty({5, 7, 2, 9}, at::kDouble);
  fill_with_filters(whole, 4, 0, 0, 7);
  at::Tensor part = at::empty({2, 3, 2, 9}, at::kDouble);
  fill_with_filters(part, 4, 3, 2, 7);
  EXPECT_TRUE(at::equal(part, whole.slice(0, 3, 5).slice(1, 2, 5)));
  EXPECT_LT((at::linalg_vector_norm(whole, 2, -1) - 1).abs().max().item<double>(), 1e-14);
  EXPECT_LT(whole.mean().abs().item<double>(), 0.1);
  at::Tensor other = at::empty_like(whole);
  fill_with_filters(other, 5, 0, 0, 7);
  EXPECT_GT(relative_difference(other, whole), 0.5);
  EXPECT_GT(relative_difference(whole.select(1, 0), whole.select(1, 1)), 0.5) << "filters are untied";
}

TEST(LocallyConnected, FiltersThatAreZeroStay) {
  at::Tensor weight = at::zeros({1, 2, 1, 3}, at::kDouble);
  weight.select(1, 1).fill_(2);
  normalize_filters(weight);
  EXPECT_EQ(weight.select(1, 0).abs().max().item<double>(), 0);
  EXPECT_NEAR(weight.select(1, 1).norm().item<double>(), 1, 1e-15);
}

TEST(LocallyConnected, OptionsThatMakeNoLayerAreRefused) {
  const auto message = [](const LocallyConnectedOptions& options) -> std::string {
    try {
      LocallyConnected2d layer(options);
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(message({.height = 4, .width = 9, .windows = {5, 1, 0}}), HasSubstr("do not fit into"));
  EXPECT_THAT(message({.height = 9, .width = 9, .windows = {3, 0, 0}}), HasSubstr("stride"));
  EXPECT_THAT(message({.height = 9, .width = 9, .windows = {3, 1, 3}}),
              HasSubstr("padding is less than size"));
  EXPECT_THAT(message({.height = 9, .width = 9, .maps = 0}), HasSubstr("at least 1"));
  EXPECT_EQ(message({.height = 9, .width = 9, .windows = {3, 1, 2}}), "");
  EXPECT_THAT(message({.height = 9, .width = 9, .windows = {int64_t{1} << 62, 1, 0}}), HasSubstr("make no"));
}

}  // namespace
}  // namespace starling
