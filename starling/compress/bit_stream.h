// Writes and reads numbers of any number of bits. The first bit is the highest bit of the first byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starling {

// Collects bits. Not thread-safe.
class BitWriter {
 public:
  // Appends the lowest `bits` bits of `value`, the highest of them first. bits: 0 to 32.
  void put(uint32_t value, int bits) {
    for (int b = bits - 1; b >= 0; --b) {
      if (used_ % 8 == 0) bytes_.push_back(std::byte{0});
      if ((value >> b & 1) != 0) bytes_.back() |= std::byte{1} << (7 - used_ % 8);
      ++used_;
    }
  }
  // Returns the bytes so far. The unused bits of the last byte are 0.
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // The number of bits so far.
  uint64_t bits() const { return used_; }

 private:
  std::vector<std::byte> bytes_;
  uint64_t used_ = 0;
};

// Reads bits from the front of a span, which must outlive the reader. Not thread-safe.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  // The number of bits that are left.
  uint64_t left() const { return 8 * static_cast<uint64_t>(bytes_.size()) - at_; }
  // Returns the next bit. left() must be above 0.
  uint32_t bit() {
    const auto byte = static_cast<uint32_t>(bytes_[at_ / 8]);
    const uint32_t value = byte >> (7 - at_ % 8) & 1;
    ++at_;
    return value;
  }
  // Returns the number that the next `bits` bits are. left() must be at least `bits`.
  uint32_t number(int bits) {
    uint32_t value = 0;
    for (int b = 0; b < bits; ++b) value = value << 1 | bit();
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
};

}  // namespace starling
