// TensorSlice: how a parameter is divided among ranks: along one dim, in consecutive parts that differ by at most one entry.
// Where the dim holds several matrices side by side (query, key and value of an attention), each is divided by itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace starling {

// The part of `count` entries that rank `rank` of `size` holds.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};
IndexRange part_of_range(int64_t count, int size, int rank);

struct TensorSlice {
  int64_t dim = 0;
  int64_t sections = 1;        // equal matrices that lie side by side along dim
  std::vector<int64_t> sizes;  // of the whole tensor

  int64_t width() const { return sizes.at(static_cast<size_t>(dim)) / sections; }  // of a section
  // A rank's part of the whole tensor, in memory of its own.
  at::Tensor cut(const at::Tensor& whole, int size, int rank) const;
  // The whole tensor from the parts of all ranks, in their order.
  at::Tensor join(const std::vector<at::Tensor>& parts) const;
  // The sizes of a rank's part.
  std::vector<int64_t> part_sizes(int size, int rank) const;
};

// The parameters of a model that its ranks have divided, by their names in the model; the others every rank holds whole.
using TensorSlices = std::map<std::string, TensorSlice>;

}  // namespace starling
