// Pseudorandom numbers that are a function of a key. There is no generator and no state, so every rank and
// every thread gets equal numbers for equal keys (design decision 5).
#pragma once

#include <cstdint>

namespace starling {

// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). The
// function is a bijection.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// 2^64 divided by the golden ratio: the increment of SplitMix64.
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// Combines three values into one key. The order of the values matters.
constexpr uint64_t key_of(uint64_t a, uint64_t b, uint64_t c) {
  return mix64(mix64(mix64(a + kGolden) + b + 2 * kGolden) + c + 3 * kGolden);
}

// Returns a number in [0, 1) that is made from the upper 53 bits.
constexpr double uniform_of(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace starling
