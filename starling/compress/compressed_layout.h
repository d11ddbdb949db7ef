// What the writer and the parser of compressed weights share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace starling {

// The first bytes. Read as the size of a safetensors header, they exceed what any reader accepts.
inline constexpr std::array<char, 8> kCompressedMagic = {'S', 'T', 'R', 'L', 'N', 'G', 'C', 'W'};
inline constexpr size_t kChecksumBytes = 8;
inline constexpr int kLengthBits = 5;  // of the length of a Huffman code

// How a tensor is stored.
enum class CompressedKind : uint8_t { kDense = 0, kClustered = 1 };

// Returns the bytes that `count` lengths of codes take.
constexpr size_t length_table_bytes(size_t count) {
  return (count * kLengthBits + 7) / 8;
}

}  // namespace starling
