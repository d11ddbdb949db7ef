#include "starling/nn/layers/image_normalization.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "starling/base/error.h"
#include "starling/torch_testing/tensor_difference.h"

namespace starling {
namespace {

constexpr double kRounding = 1e-13;  // of sums in another order

// The output of a layer and the gradient of its input.
struct PlainPass {
  at::Tensor y, dx;
};

PlainPass plain_l2_pool(const at::Tensor& input, const at::Tensor& output_gradient,
                        const L2PoolOptions& options) {
  const ImageWindows& w = options.windows;
  PlainPass result{at::zeros_like(output_gradient), at::zeros_like(input)};
  const auto x = input.accessor<double, 4>(), dy = output_gradient.accessor<double, 4>();
  auto y = result.y.accessor<double, 4>(), dx = result.dx.accessor<double, 4>();
  for (int64_t n = 0; n < y.size(0); ++n)
    for (int64_t c = 0; c < y.size(1); ++c)
      for (int64_t i = 0; i < y.size(2); ++i)
        for (int64_t j = 0; j < y.size(3); ++j) {
          const auto in_window = [&](const auto& visit) {
            for (int64_t r = i * w.stride - w.padding; r < i * w.stride - w.padding + w.size; ++r)
              for (int64_t s = j * w.stride - w.padding; s < j * w.stride - w.padding + w.size; ++s)
                if (r >= 0 && r < x.size(2) && s >= 0 && s < x.size(3)) visit(r, s);
          };
          double sum = options.epsilon;
          in_window([&](int64_t r, int64_t s) { sum += x[n][c][r][s] * x[n][c][r][s]; });
          y[n][c][i][j] = std::sqrt(sum);
          in_window([&](int64_t r, int64_t s) {
            dx[n][c][r][s] += dy[n][c][i][j] * x[n][c][r][s] / y[n][c][i][j];
          });
        }
  return result;
}

// One sample [maps, height, width] of local contrast normalization, by plain loops.
class PlainContrastNorm {
 public:
  PlainContrastNorm(const at::Tensor& x, const ContrastNormOptions& options)
      : maps_(x.size(0)), height_(x.size(1)), width_(x.size(2)), options_(options), x_(x) {
    g_ = at::zeros_like(x);
    divisor_ = at::zeros({height_, width_}, at::kDouble);
  }

  at::Tensor forward() {
    const auto x = x_.accessor<double, 3>();
    auto g = g_.accessor<double, 3>();
    auto divisor = divisor_.accessor<double, 2>();
    for_each_pixel([&](int64_t i, int64_t j) {
      double mean = 0;
      around(i, j, [&](int64_t r, int64_t s, double weight) {
        for (int64_t d = 0; d < maps_; ++d) mean += weight * x[d][r][s];
      });
      for (int64_t c = 0; c < maps_; ++c) g[c][i][j] = x[c][i][j] - mean;
    });
    at::Tensor y = at::zeros_like(x_);
    auto out = y.accessor<double, 3>();
    for_each_pixel([&](int64_t i, int64_t j) {
      double square = 0;
      around(i, j, [&](int64_t r, int64_t s, double weight) {
        for (int64_t d = 0; d < maps_; ++d) square += weight * g[d][r][s] * g[d][r][s];
      });
      divisor[i][j] = std::max(options_.floor, std::sqrt(square));
      for (int64_t c = 0; c < maps_; ++c) out[c][i][j] = g[c][i][j] / divisor[i][j];
    });
    return y;
  }

  // Call it after forward().
  at::Tensor backward(const at::Tensor& output_gradient) {
    const auto dy = output_gradient.accessor<double, 3>(), g = g_.accessor<double, 3>();
    const auto divisor = divisor_.accessor<double, 2>();
    at::Tensor dg_tensor = at::zeros_like(x_);
    auto dg = dg_tensor.accessor<double, 3>();
    for_each_pixel([&](int64_t i, int64_t j) {
      const double d = divisor[i][j];
      double dd = 0;
      for (int64_t c = 0; c < maps_; ++c) {
        dg[c][i][j] += dy[c][i][j] / d;
        dd -= dy[c][i][j] * g[c][i][j] / (d * d);
      }
      if (d <= options_.floor) return;
      around(i, j, [&](int64_t r, int64_t s, double weight) {
        for (int64_t c = 0; c < maps_; ++c) dg[c][r][s] += dd / (2 * d) * weight * 2 * g[c][r][s];
      });
    });
    at::Tensor dx_tensor = dg_tensor.clone();
    auto dx = dx_tensor.accessor<double, 3>();
    for_each_pixel([&](int64_t i, int64_t j) {
      double sum = 0;
      for (int64_t c = 0; c < maps_; ++c) sum += dg[c][i][j];
      around(i, j, [&](int64_t r, int64_t s, double weight) {
        for (int64_t c = 0; c < maps_; ++c) dx[c][r][s] -= weight * sum;
      });
    });
    return dx_tensor;
  }

 private:
  template <typename Visit>
  void for_each_pixel(const Visit& visit) const {
    for (int64_t i = 0; i < height_; ++i)
      for (int64_t j = 0; j < width_; ++j) visit(i, j);
  }
  // Calls visit(row, column, weight) for the pixels in the window around (i, j), for each map.
  template <typename Visit>
  void around(int64_t i, int64_t j, const Visit& visit) const {
    const int64_t half = options_.size / 2;
    const double deviation = static_cast<double>(options_.size) / 4;
    double sum = 0;
    for (const bool counts : {true, false})
      for (int64_t u = -half; u <= half; ++u)
        for (int64_t v = -half; v <= half; ++v) {
          if (i + u < 0 || i + u >= height_ || j + v < 0 || j + v >= width_) continue;
          const double weight = std::exp(-static_cast<double>(u * u + v * v) / (2 * deviation * deviation));
          if (counts) sum += weight;
          if (!counts) visit(i + u, j + v, weight / sum / static_cast<double>(maps_));
        }
  }

  const int64_t maps_, height_, width_;
  const ContrastNormOptions options_;
  const at::Tensor x_;
  at::Tensor g_, divisor_;
};

TEST(L2Pool, IsWhatPlainLoopsCompute) {
  at::manual_seed(5);
  for (const ImageWindows& windows : {ImageWindows{3, 1, 0}, ImageWindows{2, 2, 0}, ImageWindows{5, 2, 2}}) {
    const L2PoolOptions options{.windows = windows, .epsilon = 1e-3};
    const at::Tensor x = at::randn({2, 3, 9, 8}, at::kDouble).requires_grad_();
    const at::Tensor y = L2Pool2d(options)->forward(x);
    const at::Tensor dy = at::randn({2, 3, windows.positions(9), windows.positions(8)}, at::kDouble);
    y.backward(dy);
    const PlainPass plain = plain_l2_pool(x.detach(), dy, options);
    EXPECT_LT(relative_difference(y.detach(), plain.y), kRounding);
    EXPECT_LT(relative_difference(x.grad(), plain.dx), kRounding);
  }
}

TEST(L2Pool, HasAGradientAtZero) {
  const at::Tensor x = at::zeros({1, 1, 4, 4}, at::kDouble).requires_grad_();
  L2Pool2d(L2PoolOptions{.windows = {2, 2, 0}})->forward(x).sum().backward();
  EXPECT_EQ(x.grad().abs().max().item<double>(), 0);
}

TEST(LocalContrastNorm, IsWhatPlainLoopsCompute) {
  at::manual_seed(6);
  for (const int64_t size : {1, 3, 5, 9}) {
    const ContrastNormOptions options{.size = size, .floor = 0.8};  // some of the deviations are below it
    const at::Tensor x = at::randn({2, 3, 7, 10}, at::kDouble).requires_grad_();
    const at::Tensor y = LocalContrastNorm2d(options)->forward(x);
    const at::Tensor dy = at::randn_like(y);
    y.backward(dy);
    for (int64_t n = 0; n < 2; ++n) {
      PlainContrastNorm plain(x.detach()[n], options);
      EXPECT_LT(relative_difference(y.detach()[n], plain.forward()), kRounding);
      EXPECT_LT(relative_difference(x.grad()[n], plain.backward(dy[n])), kRounding);
    }
  }
}

TEST(LocalContrastNorm, AConstantImageBecomesZeroAndHasAGradient) {
  const at::Tensor x = at::full({1, 2, 6, 6}, 3.0, at::kDouble).requires_grad_();
  const at::Tensor y = LocalContrastNorm2d(ContrastNormOptions{})->forward(x);
  EXPECT_LT(y.abs().max().item<double>(), 1e-12);
  y.backward(at::randn_like(y));
  EXPECT_TRUE(at::isfinite(x.grad()).all().item<bool>());
}

// Far from the floor, the result depends neither on the contrast nor on the brightness of an image.
TEST(LocalContrastNorm, RemovesBrightnessAndContrast) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({1, 4, 12, 12}, at::kDouble);
  LocalContrastNorm2d layer(ContrastNormOptions{});
  EXPECT_LT(relative_difference(layer->forward(20 * x + 5), layer->forward(x)), 1e-12);
}

TEST(LocalContrastNorm, OptionsWithoutACenterOrAFloorAreRefused) {
  EXPECT_THROW(LocalContrastNorm2d(ContrastNormOptions{.size = 4}), ConfigError);
  EXPECT_THROW(LocalContrastNorm2d(ContrastNormOptions{.size = 5, .floor = 0}), ConfigError);
  EXPECT_THROW(LocalContrastNorm2d(ContrastNormOptions{.size = 5, .floor = NAN}), ConfigError);
}

}  // namespace
}  // namespace starling
