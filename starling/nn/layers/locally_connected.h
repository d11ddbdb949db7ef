// Locally connected layers: as convolutions, but every output position has filters of its own ("untied
// receptive fields"; Le et al., Building high-level features using large scale unsupervised learning, arXiv
// 1112.6209; Coates et al., Deep learning with COTS HPC systems, ICML 2013). With w the windows:
//
//   y[o, i, j] = b[i, j, o] + Σ_{c, u, v} W[i, j, o, (c, u, v)] x[c, i·stride − padding + u, j·stride −
//   padding + v]
//
// The filters of one position read the same pixels. They are one matrix, and all positions are one batched
// matrix product.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "starling/nn/layers/image_windows.h"

namespace starling {

// Returns y [n, maps, rows, columns] for x [n, channels, height, width], which includes the padding, and
// weight [rows, columns, maps, channels · size²]. The windows begin at multiples of the stride. bias [rows,
// columns, maps] may be undefined. Differentiable in all tensors.
at::Tensor locally_connected(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             int64_t size, int64_t stride);

// Returns the adjoint map of locally_connected() without a bias: x [n, channels, height, width] for y [n,
// maps, rows, columns]. Overlapping windows are summed, and pixels under no window are 0. It decodes in an
// autoencoder, where its weight is another tensor than that of the encoder. Differentiable in all tensors.
at::Tensor locally_connected_adjoint(const at::Tensor& y, const at::Tensor& weight, int64_t height,
                                     int64_t width, int64_t size, int64_t stride);

// Sets weight [rows, columns, maps, inputs] to filters of norm 1 in random directions. The filters of the
// position (first_row + i, first_column + j) are a function of (seed, that position), whatever part of the
// layer the tensor holds. layer_columns: the columns of the whole layer.
void fill_with_filters(at::Tensor weight, uint64_t seed, int64_t first_row, int64_t first_column,
                       int64_t layer_columns);

// Divides each filter of weight [rows, columns, maps, inputs] by its norm, in place. Filters that are zero
// stay.
void normalize_filters(at::Tensor weight);

// Returns x with `padding` rows and columns of zeros at each side.
at::Tensor pad_image(const at::Tensor& x, int64_t top, int64_t bottom, int64_t left, int64_t right);

// The options of a LocallyConnected2d.
struct LocallyConnectedOptions {
  int64_t channels = 1;       // of the input
  int64_t height = 1;         // of the input, in pixels
  int64_t width = 1;          // of the input, in pixels
  int64_t maps = 1;           // filters per position
  ImageWindows windows = {};  // the receptive fields
  bool bias = true;           // one per position and map, initially 0
  uint64_t seed = 0;          // of the initial filters
};

// LocallyConnected2d has the parameters `weight` [rows, columns, maps, channels · size²] and, with a bias,
// `bias` [rows, columns, maps].
class LocallyConnected2dImpl : public torch::nn::Module {
 public:
  // Errors: ConfigError for options that leave no output position or are out of range.
  explicit LocallyConnected2dImpl(const LocallyConnectedOptions& options);

  // Returns y [n, maps, rows, columns] for x [n, channels, height, width].
  at::Tensor forward(const at::Tensor& x);
  // Returns the adjoint map of forward() without its bias.
  at::Tensor adjoint(const at::Tensor& y);

  const LocallyConnectedOptions& options() const { return options_; }

  at::Tensor weight, bias;

 private:
  const LocallyConnectedOptions options_;
};

// LocallyConnected2d holds a LocallyConnected2dImpl.
TORCH_MODULE(LocallyConnected2d);

// Throws ConfigError for options that LocallyConnected2d refuses.
void check_locally_connected(const LocallyConnectedOptions& options);

}  // namespace starling
