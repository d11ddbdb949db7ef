// RandomBits is the stream of random numbers of one word in one sweep. Its key makes a resumed run repeat the
// numbers of an uninterrupted one.
#pragma once

#include <cstdint>

#include "starling/base/split_mix.h"

namespace starling {

// A stream of random bits, and of whole numbers below a bound.
class RandomBits : public SplitMix {
 public:
  using SplitMix::SplitMix;

  // Returns a whole number below n.
  uint32_t below(uint32_t n) { return below(static_cast<uint32_t>(next() >> 32), n); }
  // Maps 32 random bits to a whole number below n.
  static uint32_t below(uint32_t bits, uint32_t n) {
    return static_cast<uint32_t>((static_cast<uint64_t>(bits) * n) >> 32);
  }
};

}  // namespace starling
