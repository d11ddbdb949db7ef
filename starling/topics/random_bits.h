// RandomBits is the stream of random numbers of one word in one sweep: SplitMix64 from a key
// (base/keyed_random.h). Equal keys give equal numbers, so that a resumed run repeats those of an
// uninterrupted one.
#pragma once

#include <cstdint>

#include "starling/base/keyed_random.h"

namespace starling {

// Not thread-safe.
class RandomBits {
 public:
  explicit RandomBits(uint64_t key) : state_(key) {}

  // Returns 64 random bits.
  uint64_t bits() { return mix64(state_ += kGolden); }
  // Returns a number in [0, 1).
  double uniform() { return uniform_of(bits()); }
  // Returns a whole number below n.
  uint32_t below(uint32_t n) { return below(static_cast<uint32_t>(bits() >> 32), n); }
  // Maps 32 random bits to a whole number below n.
  static uint32_t below(uint32_t bits, uint32_t n) {
    return static_cast<uint32_t>((static_cast<uint64_t>(bits) * n) >> 32);
  }

 private:
  uint64_t state_;
};

}  // namespace starling
