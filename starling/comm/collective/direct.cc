#include "starling/comm/collective/direct.h"

#include <vector>

namespace starling {

void direct_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                           const Elements& elements) {
  const int p = team.size();
  const size_t bytes = parts[team.me()].size();
  std::byte* arrived = team.scratch(bytes * static_cast<size_t>(p));
  std::vector<const void*> sources(p);
  sources[team.me()] = parts[team.me()].data();
  for (int i = 1; i < p; ++i) {
    const int to = team.position(i), from = team.position(-i);
    team.send(to, parts[to].data(), parts[to].size());
    sources[from] = arrived + static_cast<size_t>(from) * bytes;
    team.recv(from, arrived + static_cast<size_t>(from) * bytes, bytes);
  }
  team.move();
  reduce_parts(sources, out, bytes, elements, true);
}

void direct_all_gather(RemoteTeam& team, std::span<const Bytes> parts) {
  const Bytes own = parts[team.me()];
  for (int i = 1; i < team.size(); ++i) {
    const int from = team.position(-i);
    team.send(team.position(i), own.data(), own.size());
    team.recv(from, parts[from].data(), parts[from].size());
  }
  team.move();
}

void direct_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  const std::vector<Bytes> parts = divide(data, count, elements.type, team.size());
  direct_reduce_scatter(team, std::vector<ConstBytes>(parts.begin(), parts.end()), parts[team.me()].data(),
                        elements);
  direct_all_gather(team, parts);
}

}  // namespace starling
