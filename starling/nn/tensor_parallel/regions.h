// The operations at the edges of a region in which each rank computes a part (Shoeybi et al., Megatron-LM,
// arXiv 1909.08053, section 3). Each is a linear map of one tensor, and its backward is the adjoint map:
//
//   enter_region  f   forward: identity               backward: sum over the ranks
//   sum_region    g   forward: sum over the ranks     backward: identity
//   gather_region     forward: parts become whole     backward: own part of the gradient (equal on all ranks)
//   split_region      forward: own part               backward: the parts of the gradient become whole
//
// If ranks have different samples (parallel/hybrid.h), p ranks with n samples each use:
//
//   gather_samples    forward: [n, …] -> [p n, …]              backward: sum of the gradients, own part
//   return_samples    forward: [p n, …, part] -> [n, …, whole]  backward: [n, …, whole] -> [p n, …, part]
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "starling/nn/tensor_parallel/tensor_group.h"

namespace starling {

// A function of one tensor.
using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

// Returns the function x -> forward(x), differentiable with dx = adjoint(dy). Autograd records neither of the
// two.
TensorFunction linear_map(TensorFunction forward, TensorFunction adjoint);

// Returns f. For all functions below, the traffic is counted under the name `layer`, and the group must
// outlive what they return.
TensorFunction enter_region(TensorGroup& group, const std::string& layer);
// Returns g.
TensorFunction sum_region(TensorGroup& group, const std::string& layer);
// Returns the function that joins the parts of all ranks along `dim`. A negative dim counts from the end.
// `whole` is the number of entries of all parts together along `dim`.
TensorFunction gather_region(TensorGroup& group, int64_t dim, int64_t whole, const std::string& layer);
// Returns the function that takes this rank's part along `dim` of a tensor that is equal on all ranks, with
// `whole` entries along `dim`. A negative dim counts from the end.
TensorFunction split_region(TensorGroup& group, int64_t dim, int64_t whole, const std::string& layer);
// Returns the function that gathers the samples of all ranks.
TensorFunction gather_samples(TensorGroup& group, const std::string& layer);
// Returns the function that sends each rank its samples' features. `whole` is the number of features of all
// ranks.
TensorFunction return_samples(TensorGroup& group, int64_t whole, const std::string& layer);

}  // namespace starling
