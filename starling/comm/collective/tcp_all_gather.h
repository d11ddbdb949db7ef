// All-gather between hosts, parts of any size.
//
// ring: in step s each rank passes on the part that it got in step s - 1. Steps p - 1; each rank sends and receives
// (p - 1) / p · N for a result of N bytes:                              T = (p - 1) (α + N/p β)
// doubling (Bruck's), for small equal parts: in step k each rank sends all that it has (up to 2^k parts) to
// rank - 2^k. Steps ⌈log2 p⌉, the same bytes:                           T = ⌈log2 p⌉ α + (p - 1)/p N β
// Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997.
#pragma once

#include <cstddef>
#include <span>

#include "starling/comm/remote_team.h"

namespace starling {

// parts[i] is where the part of position i belongs; parts[me] is filled.
void tcp_ring_all_gather(RemoteTeam& team, std::span<const Bytes> parts);

// in: `bytes`; out: size() * bytes, in the order of positions.
void tcp_doubling_all_gather(RemoteTeam& team, const void* in, void* out, size_t bytes);

}  // namespace starling
