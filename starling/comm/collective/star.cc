#include "starling/comm/collective/star.h"

#include <vector>

namespace starling {

void star_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  const size_t bytes = count * size_of(elements.type);
  if (team.me() != 0) {
    team.send(0, data, bytes);
    team.move();
    team.recv(0, data, bytes);
    return team.move();
  }
  std::byte* arrived = team.scratch(bytes * static_cast<size_t>(team.size() - 1));
  std::vector<const void*> sources = {data};
  for (int i = 1; i < team.size(); ++i) {
    sources.push_back(arrived + static_cast<size_t>(i - 1) * bytes);
    team.recv(i, arrived + static_cast<size_t>(i - 1) * bytes, bytes);
  }
  team.move();
  reduce_parts(sources, data, bytes, elements, true);
  for (int i = 1; i < team.size(); ++i) team.send(i, data, bytes);
  team.move();
}

}  // namespace starling
