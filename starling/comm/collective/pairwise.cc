#include "starling/comm/collective/pairwise.h"

namespace starling {

void pairwise_all_to_all(RemoteTeam& team, std::span<const ConstBytes> in, std::span<const Bytes> out,
                         const std::vector<bool>& skip) {
  const auto paces = [&](int peer, size_t bytes) { return !skip[peer] && bytes >= kPacedBytes; };
  for (int i = 1; i < team.size(); ++i) {
    const int to = team.position(i), from = team.position(-i);
    if (i > 1) {
      const int last_to = team.position(i - 1), last_from = team.position(1 - i);
      // The last block has arrived, and the next one may come.
      if (paces(last_from, out[last_from].size())) team.send(last_from, nullptr, 0);
      if (paces(from, out[from].size())) team.send(from, nullptr, 0);
      if (paces(last_to, in[last_to].size())) team.recv(last_to, nullptr, 0);
      if (paces(to, in[to].size())) team.recv(to, nullptr, 0);
      if (team.has_queued()) team.move();
    }
    if (!skip[to]) team.send(to, in[to].data(), in[to].size());
    if (!skip[from]) team.recv(from, out[from].data(), out[from].size());
    team.move();
  }
}

}  // namespace starling
