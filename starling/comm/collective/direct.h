// Direct exchange: every rank exchanges parts with all other ranks at the same time.
// The tensor has N bytes, there are p ranks, and a further message in the same step costs o.
//
//                    steps   bytes that a rank sends   cost
//   reduce-scatter   1       (p - 1)/p N               α + (p - 2) o + (p - 1)/p N β
//   all-gather       1       (p - 1)/p N               α + (p - 2) o + (p - 1)/p N β
//   all-reduce       2       2 (p - 1)/p N             2 α + 2 (p - 2) o + 2 (p - 1)/p N β
//
// Use it among few hosts: it sends as few bytes as the ring, in the fewest steps if the parts are short.
//
// Streams that share links seldom share them well (docs/benchmarks.md, "Codecs on a slow network"). Among up
// to kMostPacedDirect ranks, parts of kPacedBytes (pairwise.h) or more therefore go in steps, in which a rank
// sends to one rank at a time. The reduce-scatter then moves them as a pairwise all-to-all, and the
// all-gather as a ring. Their costs are those of pairwise.h and ring.h.
//
// A rank reduces the p values of an element in rank order. 16-bit floats are added in fp32 and rounded once.
// The sum therefore does not depend on the order of arrival.
#pragma once

#include <span>

#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// The largest number of ranks whose long parts go in steps. It must not exceed kRankOrderRanks (choice.h):
// above that, the costs decide between algorithms that add in different orders.
inline constexpr int kMostPacedDirect = 16;

// Reduces the parts. The parameters are those of ring_reduce_scatter (ring.h).
void direct_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                           const Elements& elements);
// Gathers the parts. The parameters are those of ring_all_gather (ring.h).
void direct_all_gather(RemoteTeam& team, std::span<const Bytes> parts);

// Reduces `count` elements in place.
void direct_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
