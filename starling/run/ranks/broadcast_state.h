// Gives all ranks the tensors of one of them.
#pragma once

#include "starling/comm/group.h"
#include "starling/nn/safetensors/safetensors.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Broadcasts the state of rank `source` to all ranks. `state` has the same names and shapes on all ranks.
// Collective.
void broadcast_state(Group& group, int source, StrategyState& state);

// Gives every rank the tensors of rank 0, whose names and shapes the other ranks need not know. Collective.
void broadcast_tensors(Group& group, TensorMap& tensors);

}  // namespace starling
