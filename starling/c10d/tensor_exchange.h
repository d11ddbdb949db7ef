// The collectives of starling/comm on tensors of any strides. The calling thread executes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "starling/c10d/data_type.h"
#include "starling/comm/group.h"

namespace starling {

// Broadcasts the root's tensor in place.
void broadcast_from(Group& group, const at::Tensor& tensor, int root);
// Reduces the tensor in place.
void reduce_in_place(Group& group, const at::Tensor& tensor, const ReduceCall& call);
// Gathers the inputs of all ranks. `output` is contiguous and has room for all inputs.
void gather_all(Group& group, const at::Tensor& input, const at::Tensor& output);
// Like gather_all(), into an output of any strides.
void gather_into(Group& group, const at::Tensor& input, const at::Tensor& output);
// Reduces the inputs and writes this rank's part to `output`.
void reduce_into(Group& group, const at::Tensor& input, const at::Tensor& output, const ReduceCall& call);
// Sends in_counts[r] elements to rank r and receives out_counts[r] elements from it. Elements are counted as
// they are sent (travel_of). `out` is contiguous.
void exchange(Group& group, const at::Tensor& input, const std::vector<size_t>& in_counts,
              const at::Tensor& out, const std::vector<size_t>& out_counts);
// Returns the sum of all ranks' sparse tensors of one shape, coalesced.
at::Tensor sparse_sum(Group& group, const at::Tensor& input);

}  // namespace starling
