// Ring: every rank sends to the next rank and receives from the previous one. The tensor has N bytes, and
// there are p ranks.
//
//                    steps      bytes that a rank sends     cost
//   reduce-scatter   p - 1      (p - 1)/p N                 (p - 1) α + (p - 1)/p N β
//   all-gather       p - 1      (p - 1)/p N                 (p - 1) α + (p - 1)/p N β
//   all-reduce       2 (p - 1)  2 (p - 1)/p N               2 (p - 1) α + 2 (p - 1)/p N β
//
// In a reduce-scatter, each part passes through all ranks, and each rank adds its own values. In an
// all-gather, the finished parts pass through all ranks.
// Use it for large tensors, and on networks that suffer if many ranks send to one rank. No all-reduce sends
// fewer bytes, and a rank has one partner each way at a time.
//
// An all-reduce and an all-gather among more than two ranks cut parts of at least 2 kRingSegmentBytes into k
// segments, at most 64. A rank passes each segment on as soon as it has arrived and its values are added. So
// no link waits for an addition or for the end of a part. Each segment of an all-reduce takes 2 (p - 1)
// messages, and all segments take 2 (p - 1) k. An all-gather takes half of that. α counts the messages of one
// segment only.
//
// The sum of a part begins with the rank after its owner. All ranks get the same bits, but the order is not
// rank order. 16-bit floats are rounded at every rank.
//
// Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
#pragma once

#include <cstddef>
#include <span>

#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Reduces the parts and gives each position its own part in `out`. parts[i] has this rank's values of the
// part that position i owns. The parts are not changed, unless `out` lies in them. `out` may be parts[me].
void ring_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                         const Elements& elements);

// Gathers the parts of all positions. parts[i] is where the part of position i belongs. The caller has filled
// parts[me]. The parts may differ in size.
void ring_all_gather(RemoteTeam& team, std::span<const Bytes> parts);

constexpr size_t kRingSegmentBytes = size_t{512} << 10;  // the least size of a segment

// Returns the number of segments of each part in an all-reduce. The longest part determines it. In an
// all-gather, each part has a number of its own.
int ring_segments(std::span<const Bytes> parts);

// Reduces `count` elements in place.
void ring_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
