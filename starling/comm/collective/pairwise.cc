#include "starling/comm/collective/pairwise.h"

namespace starling {

void pairwise_all_to_all(RemoteTeam& team, std::span<const ConstBytes> in, std::span<const Bytes> out,
                         const std::vector<bool>& skip) {
  const auto sends_long = [&](int to) { return !skip[to] && in[to].size() >= kPacedBytes; };
  const auto expects_long = [&](int from) { return !skip[from] && out[from].size() >= kPacedBytes; };
  for (int i = 1; i < team.size(); ++i) {
    const int to = team.position(i), from = team.position(-i);
    if (i > 1) {
      const uint64_t announced = in[to].size();
      uint64_t heard = 0;
      const int last_to = team.position(i - 1), last_from = team.position(1 - i);
      // "The last block has arrived", "the next one may come", and "a long block will come".
      if (expects_long(last_from)) team.send(last_from, nullptr, 0);
      if (expects_long(from)) team.send(from, nullptr, 0);
      if (sends_long(to)) team.announce(to, announced);
      if (sends_long(last_to)) team.recv(last_to, nullptr, 0);
      if (sends_long(to)) team.recv(to, nullptr, 0);
      if (expects_long(from)) team.expect_announcement(from, heard);
      if (team.has_queued()) team.move();
    }
    if (!skip[to]) team.send(to, in[to].data(), in[to].size());
    if (!skip[from]) team.recv(from, out[from].data(), out[from].size());
    team.move();
  }
}

}  // namespace starling
