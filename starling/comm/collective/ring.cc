#include "starling/comm/collective/ring.h"

#include <algorithm>
#include <vector>

#include "starling/comm/copy_bytes.h"

namespace starling {

void ring_reduce_scatter(RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                         const Elements& elements) {
  const int p = team.size();
  if (p == 1) return copy_bytes(out, parts[0].data(), out == parts[0].data() ? 0 : parts[0].size());
  size_t largest = 0;
  for (const ConstBytes part : parts) largest = std::max(largest, part.size());
  // What arrives in one step is what is sent in the next: two places by turns.
  std::byte* const places = team.scratch(2 * largest);
  ConstBytes passing = parts[team.position(-1)];
  for (int step = 0; step + 1 < p; ++step) {
    const ConstBytes own = parts[team.position(-step - 2)];
    std::byte* const arriving = places + static_cast<size_t>(step % 2) * largest;
    team.send(team.position(1), passing.data(), passing.size());
    team.recv(team.position(-1), arriving, own.size());
    team.move();
    const bool last = step + 2 == p;
    add_parts(arriving, own.data(), last ? out : arriving, own.size(), elements, last);
    passing = {arriving, own.size()};
  }
}

void ring_all_gather(RemoteTeam& team, std::span<const Bytes> parts) {
  for (int step = 0; step + 1 < team.size(); ++step) {
    const Bytes out = parts[team.position(-step)];
    const Bytes in = parts[team.position(-step - 1)];
    team.send(team.position(1), out.data(), out.size());
    team.recv(team.position(-1), in.data(), in.size());
    team.move();
  }
}

void ring_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  const std::vector<Bytes> parts = divide(data, count, elements.type, team.size());
  ring_reduce_scatter(team, std::vector<ConstBytes>(parts.begin(), parts.end()), parts[team.me()].data(),
                      elements);
  ring_all_gather(team, parts);
}

}  // namespace starling
