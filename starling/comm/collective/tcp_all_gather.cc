#include "starling/comm/collective/tcp_all_gather.h"

#include "starling/comm/copy_bytes.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace starling {

void tcp_ring_all_gather(RemoteTeam& team, std::span<const Bytes> parts) {
  for (int step = 0; step + 1 < team.size(); ++step) {
    const Bytes out = parts[team.position(-step)];
    const Bytes in = parts[team.position(-step - 1)];
    team.send(team.position(1), out.data(), out.size());
    team.recv(team.position(-1), in.data(), in.size());
    team.move();
  }
}

void tcp_doubling_all_gather(RemoteTeam& team, const void* in, void* out, size_t bytes) {
  const int p = team.size();
  // Place i holds the part of position me + i, until the last rotation.
  std::vector<std::byte> turned(bytes * static_cast<size_t>(p));
  if (bytes > 0) copy_bytes(turned.data(), in, bytes);
  for (int have = 1; have < p; have *= 2) {
    const size_t moved = static_cast<size_t>(std::min(have, p - have)) * bytes;
    team.send(team.position(-have), turned.data(), moved);
    team.recv(team.position(have), turned.data() + static_cast<size_t>(have) * bytes, moved);
    team.move();
  }
  for (int i = 0; i < p && bytes > 0; ++i) {
    copy_bytes(static_cast<std::byte*>(out) + static_cast<size_t>(team.position(i)) * bytes,
               turned.data() + static_cast<size_t>(i) * bytes, bytes);
  }
}

}  // namespace starling
