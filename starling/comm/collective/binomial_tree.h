// Binomial tree, for N bytes of tensor and p ranks.
//
// In each step of a broadcast, the number of ranks that have the tensor doubles. In each step of a reduce,
// the number of ranks that hold a partial sum halves.
//
//                steps        bytes on the longest path   cost
//   broadcast    ⌈log2 p⌉     ⌈log2 p⌉ N                  ⌈log2 p⌉ (α + N β)
//   reduce       ⌈log2 p⌉     ⌈log2 p⌉ N                  ⌈log2 p⌉ (α + N β)
//   all-reduce   2 ⌈log2 p⌉   2 ⌈log2 p⌉ N                2 ⌈log2 p⌉ (α + N β)
//
// In a broadcast or a reduce, all ranks together send (p - 1) N bytes.
// Use it for broadcasts. As an all-reduce it never beats halving and doubling (halving_doubling.h), and
// exists for comparison. It is the reduction tree of FireCaffe: its cost grows with log p, while the cost of
// a single server grows with p.
// Iandola et al., FireCaffe: near-linear acceleration of deep neural network training on compute clusters,
// 2016, section 3.
#pragma once

#include <cstddef>

#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Copies `data` of position `root` to all positions.
void binomial_broadcast(RemoteTeam& team, void* data, size_t bytes, int root);

// Reduces `data` of all positions to the `data` of position 0. The `data` of other positions may change.
// Ranges of ranks are added in rank order. 16-bit floats are rounded in each step.
void binomial_reduce(RemoteTeam& team, void* data, size_t bytes, const Elements& elements);

// Reduces to position 0, then broadcasts. It works in place, on `count` elements.
void binomial_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
