#include "starling/grid/grid_layers.h"

#include <ATen/ATen.h>

namespace starling {

GridLocallyConnected2dImpl::GridLocallyConnected2dImpl(GridGroup& grid,
                                                       const LocallyConnectedOptions& options,
                                                       at::ScalarType type)
    : options_(options),
      halo_((check_locally_connected(options), grid), options.windows, options.height, options.width) {
  const PixelRect& part = halo_.plan().outputs;
  const int64_t inputs = options.channels * options.windows.size * options.windows.size;
  weight = register_parameter(
      "weight", at::empty({part.rows.count(), part.columns.count(), options.maps, inputs}, type));
  fill_with_filters(weight, options.seed, part.rows.begin, part.columns.begin,
                    options.windows.positions(options.width));
  if (options.bias)
    bias =
        register_parameter("bias", at::zeros({part.rows.count(), part.columns.count(), options.maps}, type));
}

at::Tensor GridLocallyConnected2dImpl::forward(const at::Tensor& x) {
  return locally_connected(halo_.gather(x), weight, bias, options_.windows.size, options_.windows.stride);
}

at::Tensor GridLocallyConnected2dImpl::adjoint(const at::Tensor& y) {
  const PixelRect& covered = halo_.plan().covered;
  return halo_.scatter(locally_connected_adjoint(y, weight, covered.rows.count(), covered.columns.count(),
                                                 options_.windows.size, options_.windows.stride));
}

at::Tensor GridL2Pool2dImpl::forward(const at::Tensor& x) {
  return l2_pool(halo_.gather(x), options_.windows.size, options_.windows.stride, options_.epsilon);
}

GridLocalContrastNorm2dImpl::GridLocalContrastNorm2dImpl(GridGroup& grid, const ContrastNormOptions& options,
                                                         int64_t height, int64_t width)
    : options_(options),
      height_(height),
      width_(width),
      halo_((check_contrast_norm(options), grid), windows_of(options), height, width) {}

at::Tensor GridLocalContrastNorm2dImpl::forward(const at::Tensor& x) {
  const at::Tensor window = gaussian_window(options_.size, x.scalar_type());
  const PixelRect& part = halo_.plan().outputs;
  const auto means = [&](const at::Tensor& values) {
    return gaussian_means(halo_.gather(values.mean(1, /*keepdim=*/true)), window, part.rows, part.columns,
                          height_, width_);
  };
  const at::Tensor g = x - means(x);
  return g / contrast_divisor(means(g * g), options_.floor);
}

}  // namespace starling
