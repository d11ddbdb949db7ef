// Recursive halving and doubling, for N bytes of tensor and p ranks, with q = 2^⌊log2 p⌋. Terms in
// brackets count if q < p.
//
//                steps            bytes that a rank sends cost
//   all-reduce   2 log2 q [+ 2]   2 (q - 1)/q N [+ N]     2 log2 q α + 2 (q - 1)/q N β [+ 2 (α + N β)]
//
// Halving (reduce-scatter): at the distances q/2, q/4 … 1 a rank gives its partner half of the range that it
// still holds. It adds the partner's values to the half that it keeps.
// Doubling (all-gather): the same pairs exchange their results in reverse order.
// If q < p, each of the first p - q even ranks gives its tensor to the next rank before the halving. That
// rank returns the result after the doubling.
// Use the algorithm for middle sizes among many ranks. If q = p, it sends as few bytes as the ring, in a
// logarithmic number of steps.
// Sums are taken in pairs: all ranks get the same bits, but the order is not rank order. 16-bit floats are
// rounded in each step.
// Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
#pragma once

#include <cstddef>

#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Reduces `count` elements in place.
void halving_doubling_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
