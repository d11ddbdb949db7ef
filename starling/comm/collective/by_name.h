// Runs a collective between hosts with the named algorithm. If the team has one rank, nothing is sent.
#pragma once

#include "starling/comm/algorithm.h"
#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Runs an all-reduce in place with the named algorithm.
void all_reduce_by(Algorithm algorithm, RemoteTeam& team, void* data, size_t count, const Elements& elements);

// Runs a reduce-scatter with the named algorithm. The parameters are those of ring_reduce_scatter (ring.h).
void reduce_scatter_by(Algorithm algorithm, RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                       const Elements& elements);

// Runs an all-gather with the named algorithm. The parameters are those of ring_all_gather (ring.h).
// For kBruck the parts must have one size and lie one after another.
void all_gather_by(Algorithm algorithm, RemoteTeam& team, std::span<const Bytes> parts);

}  // namespace starling
