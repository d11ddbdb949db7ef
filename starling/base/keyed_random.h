// Numbers that look random and are a function of a key: no generator, no state, the same on every rank and thread
// (design decision 5).
#pragma once

#include <cstdint>

namespace starling {

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): a
// bijection.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// One key of three values; the order matters.
constexpr uint64_t key_of(uint64_t a, uint64_t b, uint64_t c) {
  return mix64(mix64(mix64(a + kGolden) + b + 2 * kGolden) + c + 3 * kGolden);
}

}  // namespace starling
