// Pairwise all-to-all, with uneven splits: in step i each rank sends to rank + i and receives from rank - i.
// Steps p - 1; N = bytes that a rank sends to others, in all: cost (p - 1) α + N β. The fewest bytes, one partner each way at a
// time: best unless blocks are so small that steps decide (bruck.h).
#pragma once

#include <span>

#include "starling/comm/remote_team.h"

namespace starling {

// in[i] goes to position i, out[i] comes from it. Positions with `skip` set (ranks of this host) are left out.
void pairwise_all_to_all(RemoteTeam& team, std::span<const ConstBytes> in, std::span<const Bytes> out,
                         const std::vector<bool>& skip);

}  // namespace starling
