// Broadcast among the p ranks of one host. The root stages the tensor (or has it in a window); all others copy.
// Two synchronisations in a window, one a chunk else:      T = α + 3 N β   (in a window: 2 α + 2 N β for the others)
#pragma once

#include "starling/comm/local_team.h"

namespace starling {

// local_root: position of the root in the team. operation.root is the root's global rank.
void shm_broadcast(LocalTeam& team, const Operation& operation, void* data, size_t bytes, int local_root);

}  // namespace starling
