// Counter-based random numbers for data: everything drawn for a sample is a function of a key made of (seed,
// epoch, sample), so that no thread or rank has a generator of its own (design decision 5).
#pragma once

#include <cmath>
#include <cstdint>

#include "starling/base/keyed_random.h"

namespace starling {

// SplitMix64 from a key. A value; not shared between threads.
class SampleRandom {
 public:
  explicit SampleRandom(uint64_t key) : state_(key) {}
  uint64_t next() { return mix64(state_ += kGolden); }
  // [0, 1)
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // 0 … n - 1; the bias of n / 2^64 is of no account here.
  int64_t below(int64_t n) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(n)) >> 64);
  }
  // Mean 0, standard deviation 1, from the sum of four uniforms: in ±3.47, no libm, the same on every
  // machine.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508075688772; }

 private:
  uint64_t state_;
};

}  // namespace starling
