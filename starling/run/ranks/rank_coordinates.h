// The names of ranks in a checkpoint (CheckpointState::ranks), and what it has of each of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "starling/spec/run_spec.h"
#include "starling/train/checkpoint.h"

namespace starling {

// Returns the coordinate of a rank in the device mesh: "replica=1", or "replica=1,stage=0,tensor=1".
std::string coordinate_of_rank(const RunSpec& spec, int rank);

// Returns a tensor of the rank with this coordinate, or null.
const at::Tensor* tensor_of_rank(const CheckpointState& checkpoint, const std::string& coordinate,
                                 const std::string& name);

// Returns true if the checkpoint has a tensor `name` of each rank of this run, and of no other rank.
bool has_tensor_of_every_rank(const RunSpec& spec, const CheckpointState& checkpoint,
                              const std::string& name);

}  // namespace starling
