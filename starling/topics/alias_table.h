// AliasTable draws from a discrete distribution in constant time (Walker 1977; Vose, IEEE Transactions on
// Software Engineering 17(9), 1991).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "starling/topics/random_bits.h"

namespace starling {

// Keeps its memory between builds. Not thread-safe.
class AliasTable {
 public:
  // Builds the table of `weights`, which are not negative. Takes time in proportion to their number. Place i
  // is drawn with probability weights[i] / the sum. Returns the sum. With a sum of 0 the table cannot draw.
  double build(std::span<const float> weights);
  // Draws a place.
  uint32_t draw(RandomBits& random) const {
    const uint64_t bits = random.next();
    const uint32_t i = RandomBits::below(static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(size_));
    return static_cast<uint32_t>(bits) < bins_[i].keep ? i : bins_[i].other;
  }
  // Returns the number of places.
  size_t size() const { return size_; }
  // Returns the bytes of the allocated memory.
  size_t bytes() const { return bins_.capacity() * sizeof(Bin) + work_.capacity() * sizeof(uint32_t); }

 private:
  struct Bin {
    uint32_t keep;   // of 2^32: the probability of the bin's own place
    uint32_t other;  // the place that is drawn otherwise
  };
  std::vector<Bin> bins_;
  std::vector<uint32_t> work_;
  std::vector<float> left_;
  size_t size_ = 0;
};

}  // namespace starling
