// Star: everything through position 0, as with a single parameter server. N bytes of tensor, p ranks, o = what a further
// message of the same step costs.
//
//                steps   bytes through the centre                  cost
//   all-reduce   2       (p - 1) N in, then (p - 1) N out          2 α + 2 (p - 2) o + 2 (p - 1) N β
//
// The centre has the whole sum before it sends the first byte, so a full-duplex link costs it the same as a half-duplex one;
// with segments, in and out could overlap on a full-duplex link: (p - 1) N β and one segment more. All ranks together send
// 2 (p - 1) N. Fewest steps and the worst bytes: for comparison (FireCaffe, section 3), and for a few bytes among few ranks.
// The centre reduces in rank order, 16-bit floats in fp32 and rounded once.
#pragma once

#include <cstddef>

#include "starling/comm/collective/elements.h"
#include "starling/comm/remote_team.h"

namespace starling {

void star_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
