// Reads and writes the numbers of messages, unaligned and little-endian, and checks that a hostile message
// stays within its bounds.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace starling {

static_assert(std::endian::native == std::endian::little, "messages of codecs are little-endian");

// Writes a number to memory of any alignment.
template <typename T>
inline void store_value(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

// Reads a number from memory of any alignment.
template <typename T>
inline T load_value(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Throws the CommError of a message that `codec` cannot have made: "codec NAME: a message of B bytes for N
// values …".
[[noreturn]] void bad_message(const std::string& codec, size_t bytes, size_t count, const std::string& what);
// Throws the error of bad_message() unless bytes == expected.
void check_length(const std::string& codec, size_t bytes, size_t expected, size_t count);

// Writes a number as LEB128 and returns the position after it. A byte holds 7 bits, low bits first, and its
// high bit tells that another byte follows. A number takes at most 10 bytes.
inline std::byte* store_varint(std::byte* to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *to++ = static_cast<std::byte>(value | 0x80);
  *to++ = static_cast<std::byte>(value);
  return to;
}

// Reads a LEB128 number from [at, end) and moves `at` behind it. Returns false if the bytes end inside the
// number or the number exceeds 63 bits.
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
