// All-gather among the p ranks of one host: each rank copies everybody's part of N bytes to its `out`.
// In windows: two synchronisations, T = 2 α + 2 p N β; staged: one a chunk, T = α + (2 + 2 p) N β.
#pragma once

#include "starling/comm/local_team.h"

namespace starling {

// in: `bytes` (may be this rank's part of `out`); out: team.size() * bytes.
void shm_all_gather(LocalTeam& team, const Operation& operation, const void* in, void* out, size_t bytes);

}  // namespace starling
