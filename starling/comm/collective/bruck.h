// Bruck's algorithms: every rank has p blocks of n bytes (or one of its own), and ⌈log2 p⌉ steps do.
//
//                steps       bytes that a rank sends               cost
//   all-gather   ⌈log2 p⌉    (p - 1) n                             ⌈log2 p⌉ α + (p - 1) n β
//   all-to-all   ⌈log2 p⌉    n Σ_k #{i < p : bit k of i is set}    ⌈log2 p⌉ α + about p/2 ⌈log2 p⌉ n β
//   all-reduce   ⌈log2 p⌉    (p - 1) N                             ⌈log2 p⌉ α + (p - 1) N β
//
// all-gather: in step k each rank sends all that it has (up to 2^k blocks) to rank - 2^k. all-to-all: the block for rank + i
// travels by the set bits of i. all-reduce: an all-gather of the whole tensors (N bytes), which every rank then reduces in
// rank order. Best for what is small: half the steps of the others, at the price of bytes.
// Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all communications in multiport message-passing
// systems, 1997.
#pragma once

#include <cstddef>

#include "starling/comm/collective/elements.h"
#include "starling/comm/remote_team.h"

namespace starling {

// in: `bytes`; out: size() * bytes, in the order of positions.
void bruck_all_gather(RemoteTeam& team, const void* in, void* out, size_t bytes);

// in and out: size() blocks of `bytes`; block i of `in` goes to position i, block i of `out` comes from it.
void bruck_all_to_all(RemoteTeam& team, const void* in, void* out, size_t bytes);

void bruck_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
