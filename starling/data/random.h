// Counter-based random numbers for data. Everything that is drawn for a sample is a function of a key made of
// (seed, epoch, sample). No thread or rank has a generator of its own (design decision 5).
#pragma once

#include <cmath>
#include <cstdint>

#include "starling/base/split_mix.h"

namespace starling {

// The random numbers of a sample.
class SampleRandom : public SplitMix {
 public:
  using SplitMix::SplitMix;
  using SplitMix::uniform;
  // Returns a uniform number in [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Returns a number in 0 … n - 1. Its bias of n / 2^64 is negligible here.
  int64_t below(int64_t n) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(n)) >> 64);
  }
  // Returns an approximately normal number with mean 0 and standard deviation 1: the scaled sum of four
  // uniform numbers. It lies within ±3.47. It does not use libm, so every machine draws the same numbers.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508075688772; }
};

}  // namespace starling
