// Little-endian integers in messages.
#pragma once

#include <concepts>
#include <cstddef>

namespace starling {

// Writes `value` to sizeof(T) bytes at `to`.
template <std::unsigned_integral T>
void store_le(std::byte* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

// Reads an integer from sizeof(T) bytes at `from`.
template <std::unsigned_integral T>
T load_le(const std::byte* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(from[i]) << (8 * i));
  return value;
}

}  // namespace starling
