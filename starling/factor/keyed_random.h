// Numbers that are a function of a key, equal on all ranks: SplitMix64 (Steele, Lea, Flood 2014).
#pragma once

#include <cstdint>

namespace starling {

constexpr uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
constexpr uint64_t keyed(uint64_t a, uint64_t b, uint64_t c) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;
  return mixed(mixed(mixed(a + kGolden) + b + 2 * kGolden) + c + 3 * kGolden);
}
// In [0, 1).
constexpr double uniform_of(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace starling
