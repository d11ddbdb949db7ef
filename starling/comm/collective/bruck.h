// Bruck's algorithms, for p ranks. They take ⌈log2 p⌉ steps. A rank has p blocks of n bytes, or one such
// block for all-gather.
//
//                steps       bytes that a rank sends         cost
//   all-gather   ⌈log2 p⌉    (p - 1) n                       ⌈log2 p⌉ α + (p - 1) n β
//   all-to-all   ⌈log2 p⌉    n Σ_k #{i < p: bit k of i is 1} ⌈log2 p⌉ α + ~ p/2 ⌈log2 p⌉ n β
//   all-reduce   ⌈log2 p⌉    (p - 1) N                       ⌈log2 p⌉ α + (p - 1) N β
//
// all-gather: in step k each rank sends all blocks that it has (up to 2^k) to rank - 2^k.
// all-to-all: the block for rank + i travels by the set bits of i.
// all-reduce: an all-gather of the whole tensors of N bytes. Then every rank reduces them in rank order.
// Use them for small tensors: they take fewer steps than the other algorithms, but send more bytes.
// Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all communications in multiport
// message-passing systems, 1997.
#pragma once

#include <cstddef>

#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Gathers the `bytes` at `in` of all positions into `out`, which has size() * bytes, in the order of
// positions.
void bruck_all_gather(RemoteTeam& team, const void* in, void* out, size_t bytes);

// Sends block i of `in` to position i, and receives block i of `out` from position i. Both have size() blocks
// of `bytes`.
void bruck_all_to_all(RemoteTeam& team, const void* in, void* out, size_t bytes);

// Reduces `count` elements in place.
void bruck_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
