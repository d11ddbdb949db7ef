// A generator of random numbers that starts from a key.
#pragma once

#include <cstdint>

#include "starling/base/keyed_random.h"

namespace starling {

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). Equal keys give
// equal numbers. It is a value, and threads do not share it.
class SplitMix {
 public:
  // Starts the sequence of `key`.
  explicit SplitMix(uint64_t key) : state_(key) {}
  // Returns the next 64 random bits.
  uint64_t next() { return mix64(state_ += kGolden); }
  // Returns a number in [0, 1).
  double uniform() { return uniform_of(next()); }

 private:
  uint64_t state_;
};

}  // namespace starling
