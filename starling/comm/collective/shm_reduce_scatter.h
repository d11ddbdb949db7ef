// Reduce-scatter among the p ranks of one host. Each rank reduces its own part of all tensors, in rank order,
// to `out`.
//
// A part has N = count · size bytes. In windows it takes two synchronizations, and a rank reads p N and
// writes N bytes:
//                                                                       T = 2 α + (p + 1) N β
// Staged it takes one synchronization per chunk, and the p - 1 parts of other ranks are copied once more:
//                                                                       T = α + (3 p - 1) N β
#pragma once

#include "starling/comm/host/local_team.h"

namespace starling {

// Reduces team.size() * count elements at `in`. `out` has count elements and may be this rank's part of `in`.
// `divisor` is as in shm_all_reduce().
void shm_reduce_scatter(LocalTeam& team, const Operation& operation, const void* in, void* out, size_t count,
                        int divisor);

}  // namespace starling
