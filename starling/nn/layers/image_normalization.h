// Pooling and normalization in windows of images, as they follow the filters in the networks of Le et al.
// (arXiv 1112.6209) and Coates et al. (Deep learning with COTS HPC systems, ICML 2013).
//
// L2 pooling, in each map by itself:
//
//   y[c, i, j] = sqrt(ε + Σ_{u, v} x[c, i·stride − padding + u, j·stride − padding + v]²)
//
// Local contrast normalization (Jarrett et al., What is the best multi-stage architecture for object
// recognition?, ICCV 2009), with G a Gaussian window and C the number of maps:
//
//   g[c, i, j] = x[c, i, j] − Σ_{d, u, v} G[u, v]/C · x[d, i + u, j + v]
//   y[c, i, j] = g[c, i, j] / max(floor, sqrt(Σ_{d, u, v} G[u, v]/C · g[d, i + u, j + v]²))
//
// Both sums first take the mean over the maps at each pixel. A neighbor therefore needs one number per pixel,
// whatever C is. At the border of the image, G is divided by its sum inside of the image, so that constant
// images become 0.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "starling/nn/layers/image_windows.h"

namespace starling {

// Returns y [n, maps, rows, columns] of L2 pooling for x [n, maps, height, width], which includes the
// padding. Differentiable.
at::Tensor l2_pool(const at::Tensor& x, int64_t size, int64_t stride, double epsilon);

// Returns G [size, size]: exp(−(u² + v²) / (2 σ²)) with σ = size / 4, divided by its sum. u and v count from
// the center.
at::Tensor gaussian_window(int64_t size, at::ScalarType type);

// Returns the means in windows G around the pixels `rows` × `columns` of an image of height × width pixels.
// x [n, 1, …] holds the rows from rows.begin − (size − 1)/2 to rows.end + (size − 1)/2 − 1, and columns
// alike, with zeros outside of the image. G is `window` [size, size], and size is odd. Differentiable in x.
at::Tensor gaussian_means(const at::Tensor& x, const at::Tensor& window, PixelRange rows, PixelRange columns,
                          int64_t height, int64_t width);

// Returns the divisor max(floor, sqrt(means)) of the normalization. Differentiable: the gradient is 0 where
// the floor is larger.
at::Tensor contrast_divisor(const at::Tensor& means, double floor);

// The options of an L2Pool2d.
struct L2PoolOptions {
  ImageWindows windows = {};
  double epsilon = 1e-8;  // under the root, so that the gradient at 0 is 0
};

// L2Pool2d pools each map by itself. It has no parameters.
class L2Pool2dImpl : public torch::nn::Module {
 public:
  // Errors: ConfigError for windows that check_windows() refuses.
  explicit L2Pool2dImpl(const L2PoolOptions& options) : options_(options) { check_windows(options.windows); }
  // Returns y [n, maps, rows, columns] for x [n, maps, height, width].
  at::Tensor forward(const at::Tensor& x);

 private:
  const L2PoolOptions options_;
};

// L2Pool2d holds an L2Pool2dImpl.
TORCH_MODULE(L2Pool2d);

// The options of a LocalContrastNorm2d.
struct ContrastNormOptions {
  int64_t size = 5;     // pixels per side of G; odd
  double floor = 0.01;  // of the divisor
};

// LocalContrastNorm2d subtracts the local mean and divides by the local deviation. It has no parameters.
class LocalContrastNorm2dImpl : public torch::nn::Module {
 public:
  // Errors: ConfigError for an even size or a floor that is not positive.
  explicit LocalContrastNorm2dImpl(const ContrastNormOptions& options);
  // Returns y, of the shape of x [n, maps, height, width].
  at::Tensor forward(const at::Tensor& x);

 private:
  const ContrastNormOptions options_;
};

// LocalContrastNorm2d holds a LocalContrastNorm2dImpl.
TORCH_MODULE(LocalContrastNorm2d);

// Throws ConfigError for options that LocalContrastNorm2d refuses.
void check_contrast_norm(const ContrastNormOptions& options);

}  // namespace starling
