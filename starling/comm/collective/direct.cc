#include "starling/comm/collective/direct.h"

#include <algorithm>
#include <vector>

#include "starling/comm/collective/pairwise.h"
#include "starling/comm/collective/ring.h"

namespace starling {
namespace {

// Returns whether the parts go in steps. All ranks know the lengths of all parts.
template <typename Part>
bool in_steps(std::span<const Part> parts) {
  return parts.size() <= size_t{kMostPacedDirect} &&
         std::ranges::any_of(parts, [](const Part& part) { return part.size() >= kPacedBytes; });
}

}  // namespace

void direct_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                           const Elements& elements) {
  const int p = team.size();
  const size_t bytes = parts[team.me()].size();
  std::byte* arrived = team.scratch(bytes * static_cast<size_t>(p));
  std::vector<const void*> sources(p);
  std::vector<Bytes> arriving(p);
  for (int r = 0; r < p; ++r) {
    arriving[r] = {arrived + static_cast<size_t>(r) * bytes, bytes};
    sources[r] = r == team.me() ? parts[r].data() : arriving[r].data();
  }
  if (in_steps(parts)) {
    pairwise_all_to_all(team, parts, arriving, std::vector<bool>(p, false));
  } else {
    for (int i = 1; i < p; ++i) {
      const int to = team.position(i), from = team.position(-i);
      team.send(to, parts[to].data(), parts[to].size());
      team.recv(from, arriving[from].data(), bytes);
    }
    team.move();
  }
  reduce_parts(sources, out, bytes, elements, true);
}

void direct_all_gather(RemoteTeam& team, std::span<const Bytes> parts) {
  if (in_steps(parts)) return ring_all_gather(team, parts);
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
