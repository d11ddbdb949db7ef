// Dissemination barrier: in step k each rank sends a message to rank + 2^k and receives one from rank - 2^k.
//
// It takes ⌈log2 p⌉ steps and costs ⌈log2 p⌉ α. The messages have a head and no body.
// Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988.
#pragma once

#include "starling/comm/network/remote_team.h"

namespace starling {

// Returns when all ranks have called it.
void dissemination_barrier(RemoteTeam& team);

// Returns the smallest `value` of all ranks. It is a barrier whose messages have a body of one byte.
uint8_t dissemination_minimum(RemoteTeam& team, uint8_t value);

}  // namespace starling
