// The values that the tests of c10d communicate. Their ranks are threads of one process. Keep the tensors
// small, or ATen starts OpenMP threads for each rank.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace starling {

// Returns elements of 1, 2 or 3. Sums and products over four ranks are exact in every type.
inline at::Tensor values(int rank, int64_t count, at::ScalarType type, int salt = 0) {
  return (at::arange(count, at::kLong) * 5 + rank * 2 + salt).remainder(3).add(1).to(type);
}

// Computes the reduction naively: the values of all ranks in fp64, reduced along a new first axis, and
// rounded once.
inline at::Tensor reduced(int ranks, int64_t count, at::ScalarType type, c10d::ReduceOp::RedOpType op,
                          int salt = 0) {
  std::vector<at::Tensor> all;
  all.reserve(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) all.push_back(values(r, count, at::kDouble, salt));
  const at::Tensor stacked = at::stack(all);
  switch (op) {
    case c10d::ReduceOp::AVG:
      return stacked.mean(0).to(type);
    case c10d::ReduceOp::PRODUCT:
      return stacked.prod(0).to(type);
    case c10d::ReduceOp::MIN:
      return stacked.amin(0).to(type);
    case c10d::ReduceOp::MAX:
      return stacked.amax(0).to(type);
    case c10d::ReduceOp::BAND:
    case c10d::ReduceOp::BOR:
    case c10d::ReduceOp::BXOR: {
      at::Tensor bits = all[0].to(at::kLong);
      for (int r = 1; r < ranks; ++r) {
        const at::Tensor next = all[r].to(at::kLong);
        bits = op == c10d::ReduceOp::BAND  ? bits & next
               : op == c10d::ReduceOp::BOR ? bits | next
                                           : bits ^ next;
      }
      return bits.to(type);
    }
    default:
      return stacked.sum(0).to(type);
  }
}

// Returns c10d's options of a call with asyncOp.
template <typename Options>
Options options_for(bool async) {
  Options options;
  options.asyncOp = async;
  return options;
}

}  // namespace starling
