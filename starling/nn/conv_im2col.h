// Convolution as im2col and a matrix product (Chellapilla, Puri, Simard, High Performance Convolutional Neural Networks
// for Document Processing, 2006): the rows v of V are the flattened patches of the picture, the columns of K the filters,
//   conv(picture) = V · K.
// A kernel of 2×2 on pixels i11 i12 … gives v1 = (i11, i12, i21, i22), v2 = (i12, i13, i22, i23). The columns of one
// sample exist at a time; backward makes them again.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace torch {
class Library;
}

namespace starling {

struct ConvGeometry {
  int64_t stride[2] = {1, 1};  // vertical, horizontal
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};
};

// V of one picture [c, h, w]: [positions, c · kernel_h · kernel_w], positions row by row.
at::Tensor image_patches(const at::Tensor& picture, int64_t kernel_h, int64_t kernel_w,
                         const ConvGeometry& g);

// x [n, c, h, w] with weight [o, c, kernel_h, kernel_w] and bias [o] (undefined for none) -> [n, o, h', w']. Differentiable
// once. Equal to at::conv2d but for rounding.
at::Tensor im2col_conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const ConvGeometry& g);

// While an object of this class lives, every two-dimensional convolution on the CPU that is neither grouped nor transposed
// is computed by im2col_conv2d, for any model and without any change to it; the others stay libtorch's. One at a time.
class Im2colConvolution {
 public:
  Im2colConvolution();
  ~Im2colConvolution();

 private:
  std::unique_ptr<torch::Library> library_;  // the registration; taken back when it goes
};

}  // namespace starling
