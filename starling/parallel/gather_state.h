// The state of a model that is divided over the ranks of a group, from its parts.
#pragma once

#include "starling/comm/group.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Collective. Every rank gives the state of its part; on rank 0 the others' tensors are added to it (those that several ranks
// have are the lowest rank's). Elsewhere `state` is unchanged.
void gather_state(Group& group, StrategyState& state);

}  // namespace starling
