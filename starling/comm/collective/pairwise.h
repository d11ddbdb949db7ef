// Pairwise all-to-all with uneven splits: in step i each rank sends to rank + i and receives from rank - i.
//
// It takes p - 1 steps and costs (p - 1) α + N β. A rank sends N bytes to all other ranks together.
// It sends the fewest bytes and has one partner each way at a time. Use it unless the blocks are so small
// that the number of steps decides (bruck.h).
//
// Ranks that are not equally fast drift apart. Two ranks then send to one rank at the same time. Each of them
// uses half of the receiver's link, and half of its own link is idle (docs/benchmarks.md, "Codecs on a slow
// network"). Blocks of kPacedBytes or more therefore wait for two empty messages. One says that the receiver
// has all of its last block. The other says that the sender's last block has arrived. The sender also
// announces the block, so that a rank that expects a short one finds the difference at once. For such blocks
// the cost is (2 p - 3) α + 2 (p - 2) o + N β.
#pragma once

#include <cstddef>
#include <span>

#include "starling/comm/network/remote_team.h"

namespace starling {

// The shortest block, in bytes, for which ranks wait for each other.
inline constexpr size_t kPacedBytes = size_t{256} << 10;

// Sends in[i] to position i and receives out[i] from position i. It leaves out positions with skip[i] set,
// for example ranks of this host.
void pairwise_all_to_all(RemoteTeam& team, std::span<const ConstBytes> in, std::span<const Bytes> out,
                         const std::vector<bool>& skip);

}  // namespace starling
