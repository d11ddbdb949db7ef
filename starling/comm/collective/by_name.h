// The collectives between hosts by the algorithm that is named. Where it is one rank that there is, nothing happens.
#pragma once

#include "starling/comm/algorithm.h"
#include "starling/comm/collective/elements.h"
#include "starling/comm/remote_team.h"

namespace starling {

// In place.
void all_reduce_by(Algorithm algorithm, RemoteTeam& team, void* data, size_t count, const Elements& elements);

// As ring_reduce_scatter.
void reduce_scatter_by(Algorithm algorithm, RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                       const Elements& elements);

// As ring_all_gather. parts lie one after another where the algorithm is kBruck, and are of one size.
void all_gather_by(Algorithm algorithm, RemoteTeam& team, std::span<const Bytes> parts);

}  // namespace starling
