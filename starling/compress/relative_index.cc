#include "starling/compress/relative_index.h"

namespace starling {

std::vector<IndexEntry> relative_index(std::span<const uint64_t> positions, uint64_t elements, int bits) {
  const uint64_t span = uint64_t{1} << bits;
  std::vector<IndexEntry> entries;
  entries.reserve(positions.size());
  uint64_t next = 0;  // the place behind the last entry
  const auto pad = [&] {
    entries.push_back({static_cast<uint32_t>(span), true});
    next += span;
  };
  for (const uint64_t position : positions) {
    while (position - next >= span) pad();
    entries.push_back({static_cast<uint32_t>(position - next + 1), false});
    next = position + 1;
  }
  while (elements - next >= span) pad();
  return entries;
}

}  // namespace starling
