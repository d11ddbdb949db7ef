#include "starling/nn/layers/locally_connected.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "starling/base/error.h"
#include "starling/base/keyed_normal.h"
#include "starling/base/keyed_random.h"

namespace starling {
namespace {

// Returns a matrix [positions, maps, inputs] of a weight [rows, columns, maps, inputs].
at::Tensor filters_by_position(const at::Tensor& weight) {
  return weight.reshape({weight.size(0) * weight.size(1), weight.size(2), weight.size(3)});
}

}  // namespace

at::Tensor locally_connected(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             int64_t size, int64_t stride) {
  const int64_t n = x.size(0), rows = weight.size(0), columns = weight.size(1), maps = weight.size(2);
  // [n, channels · size², positions] -> [positions, channels · size², n]
  const at::Tensor fields = at::im2col(x, {size, size}, {1, 1}, {0, 0}, {stride, stride}).permute({2, 1, 0});
  at::Tensor y = at::bmm(filters_by_position(weight), fields);  // [positions, maps, n]
  if (bias.defined()) y = y + bias.reshape({rows * columns, maps, 1});
  return y.permute({2, 1, 0}).reshape({n, maps, rows, columns});
}

at::Tensor locally_connected_adjoint(const at::Tensor& y, const at::Tensor& weight, int64_t height,
                                     int64_t width, int64_t size, int64_t stride) {
  const int64_t positions = weight.size(0) * weight.size(1);
  // [positions, n, maps] x [positions, maps, channels · size²]: then the gradient of the weight is
  // contiguous.
  const at::Tensor by_position = y.reshape({y.size(0), y.size(1), positions}).permute({2, 0, 1});
  const at::Tensor fields = at::bmm(by_position, filters_by_position(weight)).permute({1, 2, 0});
  return at::col2im(fields, {height, width}, {size, size}, {1, 1}, {0, 0}, {stride, stride});
}

void fill_with_filters(at::Tensor weight, uint64_t seed, int64_t first_row, int64_t first_column,
                       int64_t layer_columns) {
  at::NoGradGuard no_grad;
  const int64_t rows = weight.size(0), columns = weight.size(1), numbers = weight.size(2) * weight.size(3);
  at::Tensor filters = at::empty({numbers}, at::kDouble);
  auto* out = filters.mutable_data_ptr<double>();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const auto position = static_cast<uint64_t>((first_row + i) * layer_columns + first_column + j);
      for (int64_t k = 0; k < numbers; ++k) {
        const uint64_t key = key_of(seed, position, static_cast<uint64_t>(k));
        out[k] = normal_of(std::log(1 - uniform_of(key)), uniform_of(mix64(key + kGolden)));
      }
      weight.select(0, i).select(0, j).copy_(filters.view({weight.size(2), weight.size(3)}));
    }
  }
  normalize_filters(weight);
}

void normalize_filters(at::Tensor weight) {
  at::NoGradGuard no_grad;
  const at::Tensor norms = at::linalg_vector_norm(weight, 2, -1, /*keepdim=*/true);
  weight.div_(at::where(norms > 0, norms, at::ones_like(norms)));
}

at::Tensor pad_image(const at::Tensor& x, int64_t top, int64_t bottom, int64_t left, int64_t right) {
  if (top == 0 && bottom == 0 && left == 0 && right == 0) return x;
  return at::constant_pad_nd(x, {left, right, top, bottom}, 0);
}

void check_locally_connected(const LocallyConnectedOptions& options) {
  const ImageWindows& windows = options.windows;
  if (options.channels < 1 || options.maps < 1)
    throw ConfigError(
        "channels, maps",
        fmt::format("a locally connected layer needs at least 1 channel and 1 map, not {} and {}",
                    options.channels, options.maps));
  check_windows(windows);
  if (windows.positions(options.height) < 1 || windows.positions(options.width) < 1)
    throw ConfigError("windows",
                      fmt::format("windows of {} pixels do not fit into an image of {} × {} pixels",
                                  windows.size, options.height, options.width));
}

LocallyConnected2dImpl::LocallyConnected2dImpl(const LocallyConnectedOptions& options) : options_(options) {
  check_locally_connected(options);
  const int64_t rows = options.windows.positions(options.height);
  const int64_t columns = options.windows.positions(options.width);
  const int64_t inputs = options.channels * options.windows.size * options.windows.size;
  weight = register_parameter("weight", at::empty({rows, columns, options.maps, inputs}));
  fill_with_filters(weight, options.seed, 0, 0, columns);
  if (options.bias) bias = register_parameter("bias", at::zeros({rows, columns, options.maps}));
}

at::Tensor LocallyConnected2dImpl::forward(const at::Tensor& x) {
  const ImageWindows& windows = options_.windows;
  const int64_t padding = windows.padding;
  return locally_connected(pad_image(x, padding, padding, padding, padding), weight, bias, windows.size,
                           windows.stride);
}

at::Tensor LocallyConnected2dImpl::adjoint(const at::Tensor& y) {
  const ImageWindows& windows = options_.windows;
  const int64_t padding = windows.padding;
  return locally_connected_adjoint(y, weight, options_.height + 2 * padding, options_.width + 2 * padding,
                                   windows.size, windows.stride)
      .narrow(2, padding, options_.height)
      .narrow(3, padding, options_.width);
}

}  // namespace starling
