// Broadcast among the p ranks of one host. The root stages the tensor or has it in a window. All other ranks
// copy it.
//
// In a window it takes two synchronizations and T = 2 α + 2 N β for a rank other than the root.
// Staged it takes one synchronization per chunk. The root copies a chunk before the other ranks copy it, so a
// tensor of one chunk takes T = α + 4 N β.
#pragma once

#include "starling/comm/host/local_team.h"

namespace starling {

// Copies `bytes` at `data` of the root to all ranks. `local_root` is the root's position in the team.
// operation.root is its rank in the group.
void shm_broadcast(LocalTeam& team, const Operation& operation, void* data, size_t bytes, int local_root);

}  // namespace starling
