#include "starling/comm/collective/binomial_tree.h"

namespace starling {

void binomial_broadcast(RemoteTeam& team, void* data, size_t bytes, int root) {
  const int p = team.size();
  const int distance_to_root = (team.me() - root + p) % p;
  int bit = 1;
  // A rank and its parent differ in the lowest set bit of this distance.
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

void binomial_reduce(RemoteTeam& team, void* data, size_t bytes, const Elements& elements) {
  const int p = team.size(), me = team.me();
  std::byte* arrived = team.scratch(bytes);
  for (int bit = 1; bit < p; bit *= 2) {
    if ((me & bit) != 0) {
      team.send(me - bit, data, bytes);
      return team.move();
    }
    if (me + bit >= p) continue;
    team.recv(me + bit, arrived, bytes);
    team.move();
    add_parts(data, arrived, data, bytes, elements, me == 0 && 2 * bit >= p);
  }
}

void binomial_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  const size_t bytes = count * size_of(elements.type);
  binomial_reduce(team, data, bytes, elements);
  binomial_broadcast(team, data, bytes, 0);
}

}  // namespace starling
