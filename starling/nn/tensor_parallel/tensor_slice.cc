#include "starling/nn/tensor_parallel/tensor_slice.h"

#include <ATen/ops/cat.h>

namespace starling {

IndexRange part_of_range(int64_t count, int size, int rank) {
  return {count * rank / size, count * (rank + 1) / size};
}

at::Tensor TensorSlice::cut(const at::Tensor& whole, int size, int rank) const {
  const IndexRange part = part_of_range(width(), size, rank);
  std::vector<at::Tensor> pieces;
  for (int64_t s = 0; s < sections; ++s)
    pieces.push_back(whole.narrow(dim, s * width() + part.begin, part.count()));
  return at::cat(pieces, dim);
}

at::Tensor TensorSlice::join(const std::vector<at::Tensor>& parts) const {
  std::vector<at::Tensor> pieces;
  for (int64_t s = 0; s < sections; ++s) {
    for (const at::Tensor& part : parts) {
      const int64_t count = part.size(dim) / sections;
      pieces.push_back(part.narrow(dim, s * count, count));
    }
  }
  return at::cat(pieces, dim);
}

std::vector<int64_t> TensorSlice::part_sizes(int size, int rank) const {
  std::vector<int64_t> result = sizes;
  result[static_cast<size_t>(dim)] = sections * part_of_range(width(), size, rank).count();
  return result;
}

}  // namespace starling
