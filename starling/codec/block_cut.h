// BlockCut divides a range into blocks whose values share a scale. Without shapes each block has `block`
// elements, and the last block may be shorter. With shapes a new block begins at each tensor, so that no two
// layers share a scale.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "starling/base/check.h"
#include "starling/base/isa_dispatch.h"
#include "starling/codec/codec.h"

namespace starling {

// Returns the number of elements that `shapes` cover, padding included.
inline size_t total_size(const std::vector<TensorShape>& shapes) {
  size_t total = 0;
  for (const TensorShape& shape : shapes) total += shape.size() + shape.padding;
  return total;
}

// Iterates over the blocks of a range.
class BlockCut {
 public:
  // block: the number of elements of a block, at least 1. shapes: the tensors of the range, or empty.
  BlockCut(size_t block, std::vector<TensorShape> shapes)
      : block_(block), shapes_(std::move(shapes)), total_(total_size(shapes_)) {
    STARLING_CHECK(block_ > 0);
  }

  // Calls visit(begin, end) for each block in order and gap(begin, end) for the padding after a tensor. count
  // is the length of the range. If there are shapes, it must be their total size.
  template <typename Visit, typename Gap>
  STARLING_INLINE void for_each(size_t count, const Visit& visit, const Gap& gap) const {
    check_count(count);
    if (shapes_.empty()) return cut(0, count, visit);
    size_t at = 0;
    for (const TensorShape& shape : shapes_) {
      cut(at, at + shape.size(), visit);
      at += shape.size();
      if (shape.padding > 0) gap(at, at + shape.padding);
      at += shape.padding;
    }
  }

  // Like for_each() above, but ignores padding.
  template <typename Visit>
  STARLING_INLINE void for_each(size_t count, const Visit& visit) const {
    for_each(count, visit, [](size_t, size_t) {});
  }

 private:
  void check_count(size_t count) const {
    STARLING_CHECK(shapes_.empty() || count == total_, "{} values, but the shapes have {} elements", count,
                   total_);
  }
  template <typename Visit>
  STARLING_INLINE void cut(size_t begin, size_t end, const Visit& visit) const {
    for (; begin < end; begin += block_) visit(begin, std::min(end, begin + block_));
  }

  size_t block_;
  std::vector<TensorShape> shapes_;
  size_t total_;
};

}  // namespace starling
