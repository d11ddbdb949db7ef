// Reduce-scatter among the p ranks of one host: each rank reduces its own part of all tensors, in rank order, to `out`.
// In windows: two synchronisations, p N reads and N writes a rank for N = count · size:         T = 2 α + (p + 1) N β
// Staged: one synchronisation a chunk, the tensor of p N bytes is copied once more:             T = α + (3 p + 1) N β
#pragma once

#include "starling/comm/local_team.h"

namespace starling {

// in: team.size() * count elements; out: count elements (may be this rank's part of `in`). divisor as in shm_all_reduce.
void shm_reduce_scatter(LocalTeam& team, const Operation& operation, const void* in, void* out, size_t count,
                        int divisor);

}  // namespace starling
