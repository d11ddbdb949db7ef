// FlatLayout describes where each parameter lies in flat memory and how that memory is cut into buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace starling {

// Offsets and sizes are in elements. Each parameter begins at a multiple of kFlatAlign, and the gap behind it
// is padding.
inline constexpr size_t kFlatAlign = 64;

// A range of flat memory that is reduced at once.
struct Bucket {
  size_t begin = 0;                // first element
  size_t end = 0;                  // one past the last element
  std::vector<size_t> parameters;  // indices, in order
  // The number of elements.
  size_t size() const { return end - begin; }
};

// The offsets and the buckets of all parameters.
struct FlatLayout {
  std::vector<size_t> offset;     // by parameter index
  std::vector<size_t> bucket_of;  // by parameter index
  std::vector<Bucket> buckets;    // ascending, covering [0, total)
  size_t total = 0;               // elements, with padding
};

// Lays the parameters out in `order` (indices into `sizes`, a permutation). A bucket ends when it has at
// least `bucket_size` elements. The total depends on the sizes alone, not on the order.
FlatLayout make_flat_layout(const std::vector<size_t>& sizes, const std::vector<size_t>& order,
                            size_t bucket_size);

// Returns the part of [begin, end) that belongs to share `index` of `shares`. The shares are nearly equal and
// begin at multiples of kFlatAlign.
std::pair<size_t, size_t> share_of(size_t begin, size_t end, size_t index, size_t shares);

}  // namespace starling
