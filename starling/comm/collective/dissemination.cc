#include "starling/comm/collective/dissemination.h"

#include <algorithm>

namespace starling {

void dissemination_barrier(RemoteTeam& team) {
  for (int distance = 1; distance < team.size(); distance *= 2) {
    team.send(team.position(distance), nullptr, 0);
    team.recv(team.position(-distance), nullptr, 0);
    team.move();
  }
}

uint8_t dissemination_minimum(RemoteTeam& team, uint8_t value) {
  for (int distance = 1; distance < team.size(); distance *= 2) {
    uint8_t theirs = 0;
    team.send(team.position(distance), &value, 1);
    team.recv(team.position(-distance), &theirs, 1);
    team.move();
    value = std::min(value, theirs);
  }
  return value;
}

}  // namespace starling
