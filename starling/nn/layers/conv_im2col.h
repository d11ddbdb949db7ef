// Convolution as im2col and a matrix product (Chellapilla, Puri, Simard, High Performance Convolutional
// Neural Networks for Document Processing, 2006). The rows v of V are the flattened patches of the picture,
// and the columns of K are the filters:
//   conv(picture) = V · K.
// For example, a 2×2 kernel on pixels i11 i12 … gives v1 = (i11, i12, i21, i22), v2 = (i12, i13, i22, i23). V
// exists for one sample at a time, and backward computes it again.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace torch {
class Library;
}

namespace starling {

// The options of a two-dimensional convolution.
struct ConvGeometry {
  int64_t stride[2] = {1, 1};  // vertical, horizontal
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};
};

// Returns V of one picture [c, h, w]. Its shape is [positions, c · kernel_h · kernel_w], with the positions
// row by row.
at::Tensor image_patches(const at::Tensor& picture, int64_t kernel_h, int64_t kernel_w,
                         const ConvGeometry& g);

// Returns the convolution [n, o, h', w'] of x [n, c, h, w] with weight [o, c, kernel_h, kernel_w] and bias
// [o]. An undefined bias means none. The function is differentiable once. It equals at::conv2d except for
// rounding.
at::Tensor im2col_conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const ConvGeometry& g);

// While an Im2colConvolution exists, im2col_conv2d computes two-dimensional convolutions on the CPU for any
// model, without a change to the model. Grouped and transposed convolutions stay libtorch's. Only one object
// may exist at a time, because it applies to the whole process.
class Im2colConvolution {
 public:
  // Replaces libtorch's convolution.
  Im2colConvolution();
  // Restores libtorch's convolution.
  ~Im2colConvolution();

 private:
  std::unique_ptr<torch::Library> library_;  // the registration, undone when it is destroyed
};

}  // namespace starling
