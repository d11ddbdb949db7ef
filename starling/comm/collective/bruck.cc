#include "starling/comm/collective/bruck.h"

#include <algorithm>
#include <vector>

#include "starling/comm/reduce/copy_bytes.h"

namespace starling {

void bruck_all_gather(RemoteTeam& team, const void* in, void* out, size_t bytes) {
  const int p = team.size();
  // Place i holds the block of position me + i. The last rotation puts the blocks into the order of
  // positions.
  std::vector<std::byte> turned(bytes * static_cast<size_t>(p));
  copy_bytes(turned.data(), in, bytes);
  for (int have = 1; have < p; have *= 2) {
    const size_t moved = static_cast<size_t>(std::min(have, p - have)) * bytes;
    team.send(team.position(-have), turned.data(), moved);
    team.recv(team.position(have), turned.data() + static_cast<size_t>(have) * bytes, moved);
    team.move();
  }
  for (int i = 0; i < p; ++i) {
    copy_bytes(static_cast<std::byte*>(out) + static_cast<size_t>(team.position(i)) * bytes,
               turned.data() + static_cast<size_t>(i) * bytes, bytes);
  }
}

void bruck_all_to_all(RemoteTeam& team, const void* in, void* out, size_t bytes) {
  const int p = team.size();
  const auto at = [bytes](auto* base, int block) { return base + static_cast<size_t>(block) * bytes; };
  // Place i holds a block that must travel i more ranks.
  std::vector<std::byte> turned(bytes * static_cast<size_t>(p));
  for (int i = 0; i < p; ++i)
    copy_bytes(at(turned.data(), i), at(static_cast<const std::byte*>(in), team.position(i)), bytes);
  std::vector<std::byte> packed(turned.size()), arrived(turned.size());
  for (int distance = 1; distance < p; distance *= 2) {
    int moved = 0;
    for (int i = 0; i < p; ++i) {
      if ((i & distance) != 0) copy_bytes(at(packed.data(), moved++), at(turned.data(), i), bytes);
    }
    team.send(team.position(distance), packed.data(), static_cast<size_t>(moved) * bytes);
    team.recv(team.position(-distance), arrived.data(), static_cast<size_t>(moved) * bytes);
    team.move();
    for (int i = p - 1; i >= 0; --i) {
      if ((i & distance) != 0) copy_bytes(at(turned.data(), i), at(arrived.data(), --moved), bytes);
    }
  }
  for (int i = 0; i < p; ++i)
    copy_bytes(at(static_cast<std::byte*>(out), team.position(-i)), at(turned.data(), i), bytes);
}

void bruck_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  const size_t bytes = count * size_of(elements.type);
  std::byte* all = team.scratch(bytes * static_cast<size_t>(team.size()));
  bruck_all_gather(team, data, all, bytes);
  std::vector<const void*> sources;
  for (int i = 0; i < team.size(); ++i) sources.push_back(all + static_cast<size_t>(i) * bytes);
  reduce_parts(sources, data, bytes, elements, true);
}

}  // namespace starling
