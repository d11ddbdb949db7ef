// Binomial tree: in each step the number of ranks that have the tensor doubles (broadcast) or that still hold a partial sum
// halves (reduce). N bytes of tensor, p ranks.
//
//                steps        bytes on the longest path   cost
//   broadcast    ⌈log2 p⌉     ⌈log2 p⌉ N                  ⌈log2 p⌉ (α + N β)
//   reduce       ⌈log2 p⌉     ⌈log2 p⌉ N                  ⌈log2 p⌉ (α + N β)
//   all-reduce   2 ⌈log2 p⌉   2 ⌈log2 p⌉ N                2 ⌈log2 p⌉ (α + N β)
//
// All ranks together send (p - 1) N for each of the first two. FireCaffe's reduction tree (Iandola et al., FireCaffe:
// near-linear acceleration of deep neural network training on compute clusters, 2016, section 3): its cost grows with
// log p where a single server's grows with p. Best for a broadcast; as an all-reduce it never does better than halving and
// doubling (halving_doubling.h), and is here to compare with.
#pragma once

#include <cstddef>

#include "starling/comm/collective/elements.h"
#include "starling/comm/remote_team.h"

namespace starling {

void binomial_broadcast(RemoteTeam& team, void* data, size_t bytes, int root);

// The result is in position 0's `data`; the others' is used up. Ranges of ranks are added in rank order; 16-bit floats are
// rounded in each step.
void binomial_reduce(RemoteTeam& team, void* data, size_t bytes, const Elements& elements);

// Reduce to position 0, then broadcast.
void binomial_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
