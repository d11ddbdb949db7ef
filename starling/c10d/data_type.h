// What torch calls element types and reduce operations, in the engine's terms.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>

#include "starling/comm/types.h"

namespace starling {

// fp32, fp64, bf16, fp16, int8, uint8, int16, int32, int64. Others: Error(kConfig) that names the type.
DataType data_type_of(at::ScalarType type);

// sum, avg, min, max, product and the bitwise ones. Others: Error(kConfig) that names the operation.
ReduceOp reduce_op_of(const c10d::ReduceOp& op);

// How elements travel where nothing is computed with them: those of any type; what the engine has no name for, as bytes.
struct Travel {
  DataType type = DataType::kUint8;
  size_t per_element = 1;  // elements of `type` for one of the tensor's
};
Travel travel_of(at::ScalarType type);

// A reduction of tensors of one type, as the engine does it.
struct ReduceCall {
  DataType type = DataType::kFp32;
  ReduceOp op = ReduceOp::kSum;
  std::optional<at::Scalar>
      factor;  // of a premultiplied sum: every rank's elements are multiplied by its own before

  // The tensor, or a new one multiplied by the factor.
  at::Tensor prepared(const at::Tensor& tensor) const;
};
// Also bool, as logical values: sum, max and bitwise or are "any", product, min and bitwise and "all", bitwise xor "odd".
// Error(kConfig) naming both where there is no such reduction.
ReduceCall reduce_call(const c10d::ReduceOp& op, at::ScalarType type);

}  // namespace starling
