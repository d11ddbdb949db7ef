// Direct exchange: every rank deals with every other at the same time. N = bytes of the whole tensor, p ranks, o = what a
// further message of the same step costs.
//
//                    steps   bytes that a rank sends   cost
//   reduce-scatter   1       (p - 1)/p N               α + (p - 2) o + (p - 1)/p N β
//   all-gather       1       (p - 1)/p N               α + (p - 2) o + (p - 1)/p N β
//   all-reduce       2       2 (p - 1)/p N             2 α + 2 (p - 2) o + 2 (p - 1)/p N β
//
// The bytes of the ring in the fewest steps: best among few hosts. A rank reduces the p parts that it has got in rank order,
// 16-bit floats in fp32 and rounded once, so the sum does not depend on who arrives when or on any choice of algorithm.
#pragma once

#include <span>

#include "starling/comm/collective/elements.h"
#include "starling/comm/remote_team.h"

namespace starling {

// As ring_reduce_scatter and ring_all_gather.
void direct_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                           const Elements& elements);
void direct_all_gather(RemoteTeam& team, std::span<const Bytes> parts);

void direct_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
