// Packs small numbers, the codes of values, without gaps. The low bits of a byte hold the first codes. Bits
// after the last code are 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace starling {

// Returns the bytes of `count` codes of `bits` bits each. bits: 1 to 8.
inline size_t packed_bytes(size_t count, size_t bits) {
  return count / 8 * bits + (count % 8 * bits + 7) / 8;
}

// Writes the codes code_of(0) to code_of(count - 1) to `to`. A code is below 2^bits.
template <typename CodeOf>
void pack_codes(std::byte* to, size_t count, size_t bits, const CodeOf& code_of) {
  for (size_t begin = 0; begin < count; begin += 8, to += bits) {
    const size_t m = std::min<size_t>(8, count - begin);
    uint64_t group = 0;
    for (size_t i = 0; i < m; ++i) group |= uint64_t{code_of(begin + i)} << (i * bits);
    std::memcpy(to, &group, packed_bytes(m, bits));
  }
}

// Calls visit(i, code) for each code in `from`, which has packed_bytes(count, bits) bytes.
template <typename Visit>
void unpack_codes(const std::byte* from, size_t count, size_t bits, const Visit& visit) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for (size_t begin = 0; begin < count; begin += 8, from += bits) {
    const size_t m = std::min<size_t>(8, count - begin);
    uint64_t group = 0;
    std::memcpy(&group, from, packed_bytes(m, bits));
    for (size_t i = 0; i < m; ++i) visit(begin + i, static_cast<uint32_t>(group >> (i * bits) & mask));
  }
}

}  // namespace starling
