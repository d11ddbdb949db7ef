#include "starling/comm/collective/pairwise.h"

namespace starling {

void pairwise_all_to_all(RemoteTeam& team, std::span<const ConstBytes> in, std::span<const Bytes> out,
                         const std::vector<bool>& skip) {
  for (int i = 1; i < team.size(); ++i) {
    const int to = team.position(i), from = team.position(-i);
    if (!skip[to]) team.send(to, in[to].data(), in[to].size());
    if (!skip[from]) team.recv(from, out[from].data(), out[from].size());
    team.move();
  }
}

}  // namespace starling
