// While a DirectLinear exists, at::linear on the CPU writes the gradients of its weight and bias straight
// into flat memory (nn/layers/gradient_slot.h). Without it, ATen makes fresh tensors that are then copied
// there. DirectLinear works for every model without a change to the model. The products and sums are those of
// ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch {
class Library;
}

namespace starling {

// Returns true if direct_linear() may be used: gradients are wanted, the weight is a matrix with a slot, and
// x has at least two dimensions.
bool has_direct_place(const at::Tensor& x, const at::Tensor& weight);

// Returns x [..., in] times `weight` plus `bias`, differentiable once. The gradients go into the parameters'
// slots. Autograd gets the gradient of a bias without a slot. The weight is [out, in], or [in, out] if
// `in_out` is true. The bias is [out], or undefined for none. has_direct_place() must be true.
at::Tensor direct_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool in_out);

// Replaces at::linear on the CPU in the whole process during its lifetime.
class DirectLinear {
 public:
  DirectLinear();
  ~DirectLinear();

 private:
  std::unique_ptr<torch::Library> library_;  // the registration, undone when it is destroyed
};

}  // namespace starling
