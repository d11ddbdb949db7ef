#include "starling/nn/layers/image_normalization.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/nn/layers/locally_connected.h"

namespace starling {
namespace {

// Returns the sum of G over the part of each window that is inside of the image, [count] for one axis. G is
// the product of one factor per axis.
at::Tensor weight_inside(const at::Tensor& factor, PixelRange range, int64_t length) {
  const int64_t half = factor.size(0) / 2;
  at::Tensor inside = at::zeros({range.count() + 2 * half}, factor.options());
  const PixelRange held = common_range({range.begin - half, range.end + half}, {0, length});
  inside.slice(0, held.begin - range.begin + half, held.end - range.begin + half).fill_(1);
  return inside.unfold(0, factor.size(0), 1).matmul(factor);
}

}  // namespace

at::Tensor l2_pool(const at::Tensor& x, int64_t size, int64_t stride, double epsilon) {
  // With the divisor 1, the mean is the sum.
  const at::Tensor sums = at::avg_pool2d(x * x, {size, size}, {stride, stride}, {0, 0}, /*ceil_mode=*/false,
                                         /*count_include_pad=*/true, /*divisor_override=*/1);
  return at::sqrt(sums + epsilon);
}

at::Tensor gaussian_window(int64_t size, at::ScalarType type) {
  const double deviation = static_cast<double>(size) / 4;
  const at::Tensor u = at::arange(size, at::kDouble) - static_cast<double>(size - 1) / 2;
  const at::Tensor factor = at::exp(-u * u / (2 * deviation * deviation));
  const at::Tensor window = at::outer(factor, factor);
  return (window / window.sum()).to(type);
}

at::Tensor gaussian_means(const at::Tensor& x, const at::Tensor& window, PixelRange rows, PixelRange columns,
                          int64_t height, int64_t width) {
  const at::Tensor sums = at::conv2d(x, window.unsqueeze(0).unsqueeze(0));
  const at::Tensor factor = window.sum(0);
  const at::Tensor inside =
      at::outer(weight_inside(factor, rows, height), weight_inside(factor, columns, width));
  return sums / inside;
}

at::Tensor contrast_divisor(const at::Tensor& means, double floor) {
  return at::sqrt(at::clamp_min(means, floor * floor));  // the root of 0 would have no gradient
}

at::Tensor L2Pool2dImpl::forward(const at::Tensor& x) {
  const ImageWindows& windows = options_.windows;
  const int64_t padding = windows.padding;
  return l2_pool(pad_image(x, padding, padding, padding, padding), windows.size, windows.stride,
                 options_.epsilon);
}

void check_contrast_norm(const ContrastNormOptions& options) {
  if (options.size < 1 || options.size % 2 == 0)
    throw ConfigError(
        "size",
        fmt::format("a normalization window of {} pixels has no center; use an odd number", options.size));
  if (!(options.floor > 0))
    throw ConfigError("floor", fmt::format("{} may divide by zero; use a positive number", options.floor));
}

LocalContrastNorm2dImpl::LocalContrastNorm2dImpl(const ContrastNormOptions& options) : options_(options) {
  check_contrast_norm(options);
}

at::Tensor LocalContrastNorm2dImpl::forward(const at::Tensor& x) {
  const int64_t height = x.size(2), width = x.size(3), half = options_.size / 2;
  const at::Tensor window = gaussian_window(options_.size, x.scalar_type());
  const auto means = [&](const at::Tensor& values) {
    return gaussian_means(pad_image(values.mean(1, /*keepdim=*/true), half, half, half, half), window,
                          {0, height}, {0, width}, height, width);
  };
  const at::Tensor g = x - means(x);
  return g / contrast_divisor(means(g * g), options_.floor);
}

}  // namespace starling
