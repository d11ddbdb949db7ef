// BlockCut: cuts a range into the blocks whose values share a scale. Without shapes a block is `block` elements, the last
// one shorter; with shapes blocks begin anew at each tensor, so that no scale serves two layers.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "starling/base/check.h"
#include "starling/codec/codec.h"
#include "starling/optim/isa_dispatch.h"

namespace starling {

// Elements that `shapes` cover, padding included.
inline size_t total_size(const std::vector<TensorShape>& shapes) {
  size_t total = 0;
  for (const TensorShape& shape : shapes) total += shape.size() + shape.padding;
  return total;
}

class BlockCut {
 public:
  BlockCut(size_t block, std::vector<TensorShape> shapes)
      : block_(block), shapes_(std::move(shapes)), total_(total_size(shapes_)) {
    STARLING_CHECK(block_ > 0);
  }

  // visit(begin, end) for each block in order, then gap(begin, end) for the padding behind a tensor.
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

  template <typename Visit>
  STARLING_INLINE void for_each(size_t count, const Visit& visit) const {
    for_each(count, visit, [](size_t, size_t) {});
  }

 private:
  void check_count(size_t count) const {
    STARLING_CHECK(shapes_.empty() || count == total_, "{} values for shapes of {}", count, total_);
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
