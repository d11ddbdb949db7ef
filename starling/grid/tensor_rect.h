// Rectangles of tensors.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "starling/grid/rank_grid.h"

namespace starling {

// Returns a view of the rectangle `part` of a tensor that holds the rectangle `whole`. The rows are its
// dimension `axis`, and the columns are the next one.
inline at::Tensor rect_of(const at::Tensor& tensor, int64_t axis, const PixelRect& whole,
                          const PixelRect& part) {
  return tensor.narrow(axis, part.rows.begin - whole.rows.begin, part.rows.count())
      .narrow(axis + 1, part.columns.begin - whole.columns.begin, part.columns.count());
}

}  // namespace starling
