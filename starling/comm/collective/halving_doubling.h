// Recursive halving and doubling. N bytes of tensor, p ranks, q = 2^⌊log2 p⌋.
//
//                steps                       bytes that a rank sends        cost
//   all-reduce   2 log2 q [+ 2 where q < p]  2 (q - 1)/q N [+ N]            2 log2 q α + 2 (q - 1)/q N β [+ 2 (α + N β)]
//
// Halving (reduce-scatter): at distance q/2, q/4 … 1 a rank gives its partner half of what it still holds and adds the
// partner's values to the other half. Doubling (all-gather): the same pairs in reverse. Where p is no power of two, the
// first p - q even ranks hand their tensor to the next rank before, and get the result from it after. As few bytes as the
// ring where q = p, in logarithmically many steps: best for middle sizes among many ranks. The sum is taken in pairs: the
// same bits on all ranks, but not rank order; 16-bit floats are rounded in each step.
// Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
#pragma once

#include <cstddef>

#include "starling/comm/collective/elements.h"
#include "starling/comm/remote_team.h"

namespace starling {

void halving_doubling_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
