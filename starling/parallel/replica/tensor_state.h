// Converts states of models whose parameters are sharded (nn/tensor_parallel/tensor_slice.h) from their whole
// to their sharded form.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "starling/comm/group.h"
#include "starling/nn/tensor_parallel/tensor_slice.h"

namespace starling {

// Returns the parameter that a tensor of a state belongs to: "momentum/fc1.weight" -> "fc1.weight".
std::string parameter_of_state(const std::string& name);

// Returns a rank's parts of whole tensors, under the names of the state. A tensor whose sizes differ from
// those of the whole parameter is not cut, so that the object that loads the state can refuse it.
std::map<std::string, at::Tensor> cut_state(const std::map<std::string, at::Tensor>& whole,
                                            const TensorSlices& slices, int size, int rank);

// Returns whole tensors on rank 0 of the group whose ranks hold the parts. The other ranks send theirs. Names
// are equal on all ranks. A tensor that does not have the sizes of a part is no part and is equal on all
// ranks. An example is ADMM's penalty, which is under a parameter's name. Collective over the group.
std::map<std::string, at::Tensor> join_state(const std::map<std::string, at::Tensor>& parts,
                                             const TensorSlices& slices, Group& group);

}  // namespace starling
