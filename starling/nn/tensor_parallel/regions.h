// The operations that stand at the edges of a region in which each rank computes a part (Shoeybi et al., Megatron-LM, arXiv
// 1909.08053, section 3). They are linear maps of one tensor, and backward is the adjoint, so each is a pair:
//
//   enter_region  f   forward: identity               backward: sum over the ranks
//   sum_region    g   forward: sum over the ranks     backward: identity
//   gather_region     forward: parts become whole     backward: own part of the gradient, which is equal on all ranks
//
// and where ranks have different samples (parallel/hybrid.h), p ranks with n samples each:
//
//   gather_samples    forward: [n, …] -> [p n, …]              backward: sums the gradients, each rank gets its samples' back
//   return_samples    forward: [p n, …, part] -> [n, …, whole]  backward: [n, …, whole] -> [p n, …, part]
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "starling/nn/tensor_parallel/tensor_group.h"

namespace starling {

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

// x -> forward(x), differentiable, with dx = adjoint(dy). Neither is recorded by autograd.
TensorFunction linear_map(TensorFunction forward, TensorFunction adjoint);

// `layer` is whom the traffic is counted for. The group outlives what these return.
TensorFunction enter_region(TensorGroup& group, const std::string& layer);
TensorFunction sum_region(TensorGroup& group, const std::string& layer);
// dim may be negative: from the end. whole: entries of all parts along it.
TensorFunction gather_region(TensorGroup& group, int64_t dim, int64_t whole, const std::string& layer);
TensorFunction gather_samples(TensorGroup& group, const std::string& layer);
TensorFunction return_samples(TensorGroup& group, int64_t whole, const std::string& layer);

}  // namespace starling
