// MPI's types and operations for ours.
#pragma once

#include <mpi.h>

#include <array>
#include <string>

#include "starling/comm/types.h"

namespace starling {

// Empty, or what MPI says of `code`.
std::string mpi_fault(int code);

// The type that MPI moves elements of `type` as: 16-bit floats as 16 bits.
MPI_Datatype mpi_type(DataType type);

// MPI's own operations where their results are those of our kernels (reduce_kernels.h); the kernels themselves, as operations of MPI,
// where they are not: 16-bit floats, which MPI does not know, and minimum and maximum of floats, which ours let a NaN win.
class MpiOperations {
 public:
  MpiOperations() = default;
  MpiOperations(const MpiOperations&) = delete;
  // Empty, or the reason. After MPI has begun.
  std::string make();
  // Before MPI ends.
  void free();
  // kAvg as kSum.
  MPI_Op of(ReduceOp op, DataType type) const;

 private:
  static constexpr size_t kTypes = 4, kOps = 4;  // fp32 … fp16; sum, min, max, product
  std::array<MPI_Op, kTypes * kOps> made_{};
  bool complete_ = false;
};

}  // namespace starling
