// Star: all data passes through position 0, as with a single parameter server.
// The tensor has N bytes, there are p ranks, and a further message in the same step costs o.
//
//                steps   bytes through the center                  cost
//   all-reduce   2       (p - 1) N in, then (p - 1) N out          2 α + 2 (p - 2) o + 2 (p - 1) N β
//
// The center has the whole sum before it sends the first byte. A full-duplex link therefore costs as much as
// a half-duplex link. All ranks together send 2 (p - 1) N bytes.
// Use it for a few bytes among few ranks, and for comparison (FireCaffe, section 3; see binomial_tree.h). It
// takes the fewest steps and moves the most bytes through one rank.
// The center reduces in rank order. 16-bit floats are added in fp32 and rounded once.
#pragma once

#include <cstddef>

#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Reduces `count` elements in place.
void star_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
