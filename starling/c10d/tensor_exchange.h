// The engine's collectives on tensors of any strides, by the thread that calls them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "starling/c10d/data_type.h"
#include "starling/comm/group.h"

namespace starling {

void broadcast_from(Group& group, const at::Tensor& tensor, int root);
// In place.
void reduce_in_place(Group& group, const at::Tensor& tensor, const ReduceCall& call);
// output: contiguous, with room for the inputs of all ranks.
void gather_all(Group& group, const at::Tensor& input, const at::Tensor& output);
// The same into an output of any strides.
void gather_into(Group& group, const at::Tensor& input, const at::Tensor& output);
// output: this rank's part of the reduced inputs.
void reduce_into(Group& group, const at::Tensor& input, const at::Tensor& output, const ReduceCall& call);
// Sends in_counts[r] elements, as they travel (travel_of), to rank r and takes out_counts[r] from it. out: contiguous.
void exchange(Group& group, const at::Tensor& input, const std::vector<size_t>& in_counts,
              const at::Tensor& out, const std::vector<size_t>& out_counts);
// The sum of all ranks' sparse tensors of one shape, coalesced.
at::Tensor sparse_sum(Group& group, const at::Tensor& input);

}  // namespace starling
