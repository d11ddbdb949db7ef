// A stream of random numbers whose whole state is a counter, so that a checkpoint holds one number.
#pragma once

#include <cmath>
#include <cstdint>

#include "starling/base/keyed_normal.h"
#include "starling/base/keyed_random.h"

namespace starling {

// RandomStream returns the numbers of a key one after another. Equal keys give equal numbers.
class RandomStream {
 public:
  // Begins the stream of a key.
  explicit RandomStream(uint64_t key) : key_(key) {}

  // Returns a number in [0, 1).
  double uniform() { return uniform_of(key_of(key_, drawn_++, 0)); }
  // Returns a number from 0 to count - 1. count: from 1 to 2^50.
  int64_t below(int64_t count) { return static_cast<int64_t>(uniform() * static_cast<double>(count)); }
  // Returns a standard normal number.
  double normal() {
    const double logarithm = std::log1p(-uniform());
    return normal_of(logarithm, uniform());
  }

  // How many numbers have been drawn. Two of them make a normal number.
  int64_t drawn() const { return static_cast<int64_t>(drawn_); }
  // Goes on behind a number of drawn numbers.
  void go_on_from(int64_t drawn) { drawn_ = static_cast<uint64_t>(drawn); }

 private:
  uint64_t key_;
  uint64_t drawn_ = 0;
};

}  // namespace starling
