// Reduce-scatter between hosts by direct exchange: each rank sends every other the part that it owns, and reduces the p
// parts that it has got in rank order, 16-bit floats in fp32 and rounded once. As many bytes as the ring's, but the sum
// does not depend on who is where in a ring; p - 1 messages each way at the same time.
// Bytes sent and received: (p - 1) / p · N:       T = α + (p - 1)/p N β + N γ
#pragma once

#include <span>

#include "starling/comm/remote_team.h"
#include "starling/comm/types.h"

namespace starling {

struct Elements {
  DataType type;
  ReduceOp op;
  int divisor;  // of a sum
};

// parts[i]: this rank's values of the part that position i owns (memory of this rank, not changed except where `out`
// lies in it). The reduced part of this rank goes to `out` (may be parts[me]).
void tcp_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                        const Elements& elements);

}  // namespace starling
