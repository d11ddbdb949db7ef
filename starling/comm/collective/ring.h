// Ring: every rank sends to the next and receives from the one before it. N = bytes of the whole tensor, p ranks.
//
//                    steps      bytes that a rank sends     cost
//   reduce-scatter   p - 1      (p - 1)/p N                 (p - 1) α + (p - 1)/p N β
//   all-gather       p - 1      (p - 1)/p N                 (p - 1) α + (p - 1)/p N β
//   all-reduce       2 (p - 1)  2 (p - 1)/p N               2 (p - 1) α + 2 (p - 1)/p N β
//
// In reduce-scatter a part goes round and each rank adds its own values to it; in all-gather the finished parts go round.
// The fewest bytes that an all-reduce can do with, and only one partner each way at a time: best for large tensors, and on
// networks that suffer where many send to one. An all-reduce whose parts are longer than kRingSegmentBytes cuts them into k
// segments, up to 64, and a rank passes each on as soon as it has added to it: no link waits for an addition, and α is that of a
// segment on its way round, 2 (p - 1) messages of each: 2 (p - 1) k in all. The sum of a part begins with the rank after its owner: the same bits on all
// ranks, but not rank order; 16-bit floats are rounded at every rank on the way.
// Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
#pragma once

#include <cstddef>
#include <span>

#include "starling/comm/collective/elements.h"
#include "starling/comm/remote_team.h"

namespace starling {

// parts[i]: this rank's values of the part that position i owns; not changed, except where `out`, which gets the reduced
// part of this rank, lies in them (it may be parts[me]).
void ring_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                         const Elements& elements);

// parts[i] is where the part of position i belongs; parts[me] is filled. Parts may differ in size.
void ring_all_gather(RemoteTeam& team, std::span<const Bytes> parts);

constexpr size_t kRingSegmentBytes = size_t{512} << 10;

// Of each of these parts of an all-reduce, by the longest of them.
int ring_segments(std::span<const Bytes> parts);

void ring_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
