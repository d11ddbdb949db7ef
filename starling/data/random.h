// Counter-based random numbers for data. Everything that is drawn for a sample is a function of a key made of
// (seed, epoch, sample). No thread or rank has a generator of its own (design decision 5).
#pragma once

#include <cmath>
#include <cstdint>

#include "starling/base/keyed_random.h"

namespace starling {

// A SplitMix64 generator that starts from a key. It is a value, and threads do not share it.
class SampleRandom {
 public:
  // Starts the sequence of `key`.
  explicit SampleRandom(uint64_t key) : state_(key) {}
  // Returns the next 64 random bits.
  uint64_t next() { return mix64(state_ += kGolden); }
  // Returns a uniform number in [0, 1).
  double uniform() { return uniform_of(next()); }
  // Returns a uniform number in [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Returns a number in 0 … n - 1. Its bias of n / 2^64 is negligible here.
  int64_t below(int64_t n) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(n)) >> 64);
  }
  // Returns an approximately normal number with mean 0 and standard deviation 1: the scaled sum of four
  // uniform numbers. It lies within ±3.47. It does not use libm, so every machine draws the same numbers.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508075688772; }

 private:
  uint64_t state_;
};

}  // namespace starling
