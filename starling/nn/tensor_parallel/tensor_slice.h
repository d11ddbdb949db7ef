// TensorSlice describes how a parameter is sharded among ranks. The ranks hold consecutive parts along one
// dimension, whose lengths differ by at most one entry. If several matrices lie side by side along that
// dimension (query, key and value of an attention), each matrix is sharded separately.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace starling {

// Consecutive entries [begin, end).
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};
// Returns the part of `count` entries that rank `rank` of `size` holds.
IndexRange part_of_range(int64_t count, int size, int rank);

// The division of one parameter.
struct TensorSlice {
  int64_t dim = 0;
  int64_t sections = 1;        // equally large matrices that lie side by side along dim
  std::vector<int64_t> sizes;  // shape of the whole tensor

  // Returns the number of entries of one section along dim.
  int64_t width() const { return sizes.at(static_cast<size_t>(dim)) / sections; }
  // Returns a rank's part of the whole tensor, in memory of its own.
  at::Tensor cut(const at::Tensor& whole, int size, int rank) const;
  // Returns the whole tensor, made of the parts of all ranks in rank order.
  at::Tensor join(const std::vector<at::Tensor>& parts) const;
  // Returns the shape of a rank's part.
  std::vector<int64_t> part_sizes(int size, int rank) const;
};

// The sharded parameters of a model, by name. Every rank holds all other parameters whole.
using TensorSlices = std::map<std::string, TensorSlice>;

}  // namespace starling
