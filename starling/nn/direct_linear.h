// DirectLinear: while an object of this class lives, at::linear on the CPU computes, for every model and without any
// change to it, the gradients of its weight straight into their place in flat memory (nn/gradient_slot.h), instead of
// into a fresh tensor that is then copied there. Products and sums are those of ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch {
class Library;
}

namespace starling {

// True if direct_linear() may be used: gradients are wanted, and the weight has a slot.
bool has_direct_place(const at::Tensor& x, const at::Tensor& weight);

// x [..., in] times weight ([out, in]; [in, out] if `in_out`) plus bias ([out]; undefined for none), whose gradients go into
// the parameters' slots. Needs has_direct_place().
at::Tensor direct_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool in_out);

class DirectLinear {
 public:
  DirectLinear();
  ~DirectLinear();

 private:
  std::unique_ptr<torch::Library> library_;  // the registration; taken back when it goes
};

}  // namespace starling
