// The communication of a layer that is sharded over several ranks (nn/tensor_parallel). The layer's
// parameters are then this rank's part.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace starling {

// Functions that a layer calls before and after its own arithmetic.
struct LayerExchange {
  std::function<at::Tensor(const at::Tensor&)> enter = {};  // on the input; differentiable; empty for none
  std::function<at::Tensor(const at::Tensor&)> leave = {};  // on the output; differentiable; empty for none
  bool bias_last = false;                                   // the bias is whole, and is added after `leave`
};

}  // namespace starling
