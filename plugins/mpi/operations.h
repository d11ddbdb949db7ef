// The MPI types and operations for the types and reduce operations of starling/comm.
#pragma once

#include <mpi.h>

#include <array>
#include <string>

#include "starling/comm/types.h"

namespace starling {

// Returns the text that MPI has for `code`, or an empty text for success.
std::string mpi_fault(int code);

// Returns the MPI type that moves elements of `type`. 16-bit floats move as 16-bit integers.
MPI_Datatype mpi_type(DataType type);

// MpiOperations holds an MPI operation for each type and reduce operation.
//
// MPI's own operations are used if their results equal those of our kernels (comm/reduce/reduce_kernels.h).
// The kernels become operations of MPI in two cases. The first case is 16-bit floats, which MPI does not
// have. The second case is minimum and maximum of floats, for which our kernels return NaN if either value is
// NaN.
class MpiOperations {
 public:
  MpiOperations() = default;
  MpiOperations(const MpiOperations&) = delete;
  // Makes the operations. Call it after MPI_Init. Returns an empty text, or the reason of a failure.
  std::string make();
  // Frees the operations. Call it before MPI_Finalize.
  void free();
  // Returns the operation. kAvg gives the operation of kSum.
  MPI_Op of(ReduceOp op, DataType type) const;

 private:
  static constexpr size_t kTypes = 4, kOps = 4;  // fp32 … fp16; sum, min, max, product
  std::array<MPI_Op, kTypes * kOps> made_{};
  bool complete_ = false;
};

}  // namespace starling
