// Pairwise all-to-all with uneven splits: in step i each rank sends to rank + i and receives from rank - i.
//
// It takes p - 1 steps and costs (p - 1) α + N β. A rank sends N bytes to all other ranks together.
// It sends the fewest bytes and has one partner each way at a time. Use it unless the blocks are so small
// that the number of steps decides (bruck.h).
#pragma once

#include <span>

#include "starling/comm/network/remote_team.h"

namespace starling {

// Sends in[i] to position i and receives out[i] from position i. It leaves out positions with skip[i] set,
// for example ranks of this host.
void pairwise_all_to_all(RemoteTeam& team, std::span<const ConstBytes> in, std::span<const Bytes> out,
                         const std::vector<bool>& skip);

}  // namespace starling
