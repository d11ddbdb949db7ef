// What a layer that several ranks divide among them does around its own arithmetic (nn/tensor_parallel): its parameters are
// this rank's part then.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace starling {

struct LayerExchange {
  std::function<at::Tensor(const at::Tensor&)> enter = {};  // on the input; empty: nothing. Differentiable.
  std::function<at::Tensor(const at::Tensor&)> leave = {};  // on the output
  bool bias_last = false;                                   // the bias is whole, and added behind `leave`
};

}  // namespace starling
