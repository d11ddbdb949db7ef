// The layers of nn/layers/locally_connected.h and nn/layers/image_normalization.h, divided over a grid of
// ranks. Each layer takes a rank's part of its input and returns the rank's part of its output. A rank holds
// the filters of its own output positions only, and no rank ever makes all of them. Halos travel forward as
// activations and backward as gradients.
//
// The gradients of a rank's loss reach the filters of other ranks through the halos. If each rank's loss is
// its part of a sum, the gradients are those of the sum. They need no further exchange.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "starling/grid/halo_exchange.h"
#include "starling/nn/layers/image_normalization.h"
#include "starling/nn/layers/locally_connected.h"

namespace starling {

// GridLocallyConnected2d has the parameters `weight` [rows, columns, maps, channels · size²] and `bias`
// [rows, columns, maps] of this rank's positions. They begin with the bits of a LocallyConnected2d.
class GridLocallyConnected2dImpl : public torch::nn::Module {
 public:
  // The grid must outlive the layer. type: of the parameters. Errors: ConfigError for options that
  // LocallyConnected2d refuses, and those of halo_plan().
  GridLocallyConnected2dImpl(GridGroup& grid, const LocallyConnectedOptions& options,
                             at::ScalarType type = at::kFloat);

  // Returns this rank's part of y for its part of x.
  at::Tensor forward(const at::Tensor& x);
  // Returns this rank's part of the adjoint map of forward(), without the bias.
  at::Tensor adjoint(const at::Tensor& y);

  // Where this rank's part is.
  const HaloPlan& plan() const { return halo_.plan(); }
  const LocallyConnectedOptions& options() const { return options_; }

  at::Tensor weight, bias;

 private:
  const LocallyConnectedOptions options_;
  HaloExchange halo_;
};

// GridLocallyConnected2d holds a GridLocallyConnected2dImpl.
TORCH_MODULE(GridLocallyConnected2d);

// GridL2Pool2d is an L2Pool2d.
class GridL2Pool2dImpl : public torch::nn::Module {
 public:
  // height × width: pixels of the input. Errors: those of halo_plan().
  GridL2Pool2dImpl(GridGroup& grid, const L2PoolOptions& options, int64_t height, int64_t width)
      : options_(options), halo_(grid, options.windows, height, width) {}

  // Returns this rank's part of y for its part of x.
  at::Tensor forward(const at::Tensor& x);

 private:
  const L2PoolOptions options_;
  HaloExchange halo_;
};

// GridL2Pool2d holds a GridL2Pool2dImpl.
TORCH_MODULE(GridL2Pool2d);

// GridLocalContrastNorm2d is a LocalContrastNorm2d. Its halos have one channel, because the means over the
// maps are taken first. Each pass moves two of them: of the values and of their squares.
class GridLocalContrastNorm2dImpl : public torch::nn::Module {
 public:
  // height × width: pixels of the input. Errors: ConfigError for options that LocalContrastNorm2d refuses,
  // and those of halo_plan().
  GridLocalContrastNorm2dImpl(GridGroup& grid, const ContrastNormOptions& options, int64_t height,
                              int64_t width);

  // Returns this rank's part of y for its part of x.
  at::Tensor forward(const at::Tensor& x);

  // Returns the windows whose halos the layer moves.
  static ImageWindows windows_of(const ContrastNormOptions& options) {
    return {options.size, 1, options.size / 2};
  }

 private:
  const ContrastNormOptions options_;
  const int64_t height_, width_;
  HaloExchange halo_;
};

// GridLocalContrastNorm2d holds a GridLocalContrastNorm2dImpl.
TORCH_MODULE(GridLocalContrastNorm2d);

}  // namespace starling
