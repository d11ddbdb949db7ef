#include "starling/comm/collective/tcp_barrier.h"

namespace starling {

void tcp_barrier(RemoteTeam& team) {
  for (int distance = 1; distance < team.size(); distance *= 2) {
    team.send(team.position(distance), nullptr, 0);
    team.recv(team.position(-distance), nullptr, 0);
    team.move();
  }
}

}  // namespace starling
