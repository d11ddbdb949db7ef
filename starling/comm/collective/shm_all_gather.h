// All-gather among the p ranks of one host. Each rank copies the parts of all ranks, N bytes each, to its
// `out`.
//
// In windows it takes two synchronizations and T = 2 α + 2 p N β.
// Staged it takes one synchronization per chunk and T = α + (2 + 2 p) N β.
#pragma once

#include "starling/comm/host/local_team.h"

namespace starling {

// Gathers `bytes` at `in` of each rank. `in` may be this rank's part of `out`. `out` has team.size() * bytes.
void shm_all_gather(LocalTeam& team, const Operation& operation, const void* in, void* out, size_t bytes);

}  // namespace starling
