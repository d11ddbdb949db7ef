// Huffman codes (Huffman, A Method for the Construction of Minimum-Redundancy Codes, 1952) in canonical form.
// The lengths of the codes determine the codes: codes are numbered by length, and by symbol within a length.
// A file therefore stores only the lengths.
//
//   H <= mean length <= H + 1.
//
// H is the entropy of the symbols, H = -Σ p log2 p. The bound holds if no code is longer than kMaxCodeBits,
// which needs more than 2 million symbols of very unequal frequency. An alphabet with one symbol has a code
// of one bit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "starling/compress/bit_stream.h"

namespace starling {

// The longest code. A length fits into 5 bits.
inline constexpr int kMaxCodeBits = 31;

// Returns the length of each symbol's code. counts: how often each symbol occurs. A symbol that does not
// occur has the length 0 and no code. Equal counts give equal lengths on every machine.
std::vector<uint8_t> huffman_lengths(std::span<const uint64_t> counts);

// Returns true if the lengths are those of a complete code: every sequence of bits is a sequence of symbols.
// A single symbol of length 1 is also valid, and so is an alphabet without symbols.
bool is_huffman_code(std::span<const uint8_t> lengths);

// Returns the number of bits of a text whose symbols occur `counts` times.
uint64_t huffman_bits(std::span<const uint64_t> counts, std::span<const uint8_t> lengths);

// Writes symbols. Immutable.
class HuffmanEncoder {
 public:
  // is_huffman_code(lengths) must be true.
  explicit HuffmanEncoder(std::span<const uint8_t> lengths);
  // Appends the code of a symbol, whose length must not be 0.
  void put(BitWriter& out, size_t symbol) const { out.put(codes_[symbol], lengths_[symbol]); }

 private:
  std::vector<uint8_t> lengths_;
  std::vector<uint32_t> codes_;
};

// Reads symbols. Immutable.
class HuffmanDecoder {
 public:
  // is_huffman_code(lengths) must be true.
  explicit HuffmanDecoder(std::span<const uint8_t> lengths);
  // Returns the next symbol. Returns nothing if the bits end, or are no code.
  std::optional<uint32_t> next(BitReader& in) const;

 private:
  std::array<uint32_t, kMaxCodeBits + 1> count_{};  // number of codes of each length
  std::vector<uint32_t> symbols_;                   // in the order of their codes
};

}  // namespace starling
