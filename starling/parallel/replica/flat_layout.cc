#include "starling/parallel/replica/flat_layout.h"

#include <algorithm>

#include "starling/base/check.h"

namespace starling {

FlatLayout make_flat_layout(const std::vector<size_t>& sizes, const std::vector<size_t>& order,
                            size_t bucket_size) {
  STARLING_CHECK(order.size() == sizes.size(), "the order has {} parameters, but there are {} sizes",
                 order.size(), sizes.size());
  FlatLayout layout;
  layout.offset.assign(sizes.size(), 0);
  layout.bucket_of.assign(sizes.size(), 0);
  Bucket open;
  for (size_t index : order) {
    layout.offset[index] = layout.total;
    layout.bucket_of[index] = layout.buckets.size();
    open.parameters.push_back(index);
    layout.total += (sizes[index] + kFlatAlign - 1) / kFlatAlign * kFlatAlign;
    open.end = layout.total;
    if (open.size() >= bucket_size) {
      layout.buckets.push_back(open);
      open = Bucket{layout.total, layout.total, {}};
    }
  }
  if (!open.parameters.empty()) layout.buckets.push_back(open);
  return layout;
}

std::pair<size_t, size_t> share_of(size_t begin, size_t end, size_t index, size_t shares) {
  const size_t blocks = (end - begin + kFlatAlign - 1) / kFlatAlign;
  const size_t from = begin + blocks * index / shares * kFlatAlign;
  const size_t to = begin + blocks * (index + 1) / shares * kFlatAlign;
  return {std::min(from, end), std::min(to, end)};
}

}  // namespace starling
