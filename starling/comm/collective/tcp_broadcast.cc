#include "starling/comm/collective/tcp_broadcast.h"

namespace starling {

void tcp_broadcast(RemoteTeam& team, void* data, size_t bytes, int root) {
  const int p = team.size();
  const int distance_to_root = (team.me() - root + p) % p;
  int bit = 1;
  // The parent differs in the lowest set bit.
  for (; bit < p; bit *= 2) {
    if ((distance_to_root & bit) == 0) continue;
    team.recv((distance_to_root - bit + root) % p, data, bytes);
    team.move();
    break;
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (distance_to_root + bit >= p) continue;
    team.send((distance_to_root + bit + root) % p, data, bytes);
    team.move();
  }
}

}  // namespace starling
