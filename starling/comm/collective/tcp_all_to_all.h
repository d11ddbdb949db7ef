// All-to-all with uneven splits between hosts, pairwise: in step i each rank sends to rank + i and receives from
// rank - i. Steps p - 1; N = what a rank sends or receives: T = (p - 1) α + N β.
#pragma once

#include <span>

#include "starling/comm/remote_team.h"

namespace starling {

// in[i] goes to position i, out[i] comes from it. Positions with `skip` set (ranks of this host) are left out.
void tcp_all_to_all(RemoteTeam& team, std::span<const ConstBytes> in, std::span<const Bytes> out,
                    const std::vector<bool>& skip);

}  // namespace starling
