// Relative indexes of a sparse tensor (Han, Mao, Dally, Deep Compression, arXiv 1510.00149, section 2).
//
// A remaining weight is stored by its distance from the weight before it, in b bits. The first distance
// counts from the place before the first element. If a distance exceeds 2^b, entries with the value 0 are put
// in between ("padding zeros"), each 2^b behind the entry before it. The places behind the last weight are
// covered in this way, too, so that fewer than 2^b of them follow the last entry. A file with few bytes
// therefore cannot stand for a tensor with many elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace starling {

// The largest b.
inline constexpr int kMaxIndexBits = 8;

// One entry of a sparse tensor.
struct IndexEntry {
  uint32_t distance = 1;  // from the entry before, 1 to 2^b
  bool padding = false;   // a padding zero, not a weight
};

// Returns the entries for weights at `positions`, which increase and are below `elements`. `bits` is b, from
// 1 to kMaxIndexBits.
std::vector<IndexEntry> relative_index(std::span<const uint64_t> positions, uint64_t elements, int bits);

}  // namespace starling
