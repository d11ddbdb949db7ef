// Gathers the state of a model that is sharded over the ranks of a group.
#pragma once

#include "starling/comm/group.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Every rank passes the state of its part. On rank 0, the tensors of all ranks are added to `state`; if
// several ranks have a tensor, the lowest rank's is taken. On all other ranks, `state` does not change.
// Collective.
void gather_state(Group& group, StrategyState& state);

}  // namespace starling
