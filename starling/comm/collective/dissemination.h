// Dissemination barrier: in step k each rank tells rank + 2^k and hears from rank - 2^k.
// Steps ⌈log2 p⌉, no bytes but the heads of messages; cost ⌈log2 p⌉ α.
// Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988.
#pragma once

#include "starling/comm/remote_team.h"

namespace starling {

void dissemination_barrier(RemoteTeam& team);

// The smallest `value` of all ranks, by the same messages with a body of one byte.
uint8_t dissemination_minimum(RemoteTeam& team, uint8_t value);

}  // namespace starling
