// Numbers in messages: unaligned, little-endian; and the checks that keep a hostile message within its bounds.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace starling {

static_assert(std::endian::native == std::endian::little, "messages of codecs are little-endian");

template <typename T>
inline void store_value(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

template <typename T>
inline T load_value(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Throws the CommError of a message that its codec cannot have made: "codec NAME: a message of B bytes for N values …".
[[noreturn]] void bad_message(const std::string& codec, size_t bytes, size_t count, const std::string& what);
// The same unless bytes == expected.
void check_length(const std::string& codec, size_t bytes, size_t expected, size_t count);

// A number in 7-bit groups, low group first, the high bit of a byte says that another follows (LEB128). At most 10 bytes.
inline std::byte* store_varint(std::byte* to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *to++ = static_cast<std::byte>(value | 0x80);
  *to++ = static_cast<std::byte>(value);
  return to;
}

// Reads one from [at, end) and moves `at` behind it; false where the bytes end first or the number exceeds 63 bits.
inline bool load_varint(const std::byte*& at, const std::byte* end, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 63; shift += 7) {
    if (at == end) return false;
    const auto byte = static_cast<uint64_t>(*at++);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

}  // namespace starling
