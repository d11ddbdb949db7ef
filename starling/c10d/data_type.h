// What torch calls element types and reduce operations, in the engine's terms.
#pragma once

#include <c10/core/ScalarType.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "starling/comm/types.h"

namespace starling {

// fp32, fp64, bf16, fp16, int8, uint8, int32, int64. Others: Error(kConfig) that names the type.
DataType data_type_of(at::ScalarType type);

// sum, avg, min, max, product. Others (bitwise ones, premultiplied sums): Error(kConfig) that names the operation.
ReduceOp reduce_op_of(const c10d::ReduceOp& op);

}  // namespace starling
