// Element types and reduce operations of torch, and their counterparts in starling/comm.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>

#include "starling/comm/types.h"

namespace starling {

// Returns the counterpart of fp32, fp64, bf16, fp16, int8, uint8, int16, int32 or int64. Errors:
// Error(kConfig) that names the type, for other types.
DataType data_type_of(at::ScalarType type);

// Returns the counterpart of sum, avg, min, max, product or a bitwise operation. Errors: Error(kConfig) that
// names the operation, for other operations.
ReduceOp reduce_op_of(const c10d::ReduceOp& op);

// The form in which elements are sent if nothing is computed with them. It exists for every type. Types that
// have no counterpart are sent as bytes.
struct Travel {
  DataType type = DataType::kUint8;
  // Elements of `type` for one element of the tensor.
  size_t per_element = 1;
};
// Returns the form in which elements of a type are sent.
Travel travel_of(at::ScalarType type);

// A reduction of tensors of one type.
struct ReduceCall {
  DataType type = DataType::kFp32;
  ReduceOp op = ReduceOp::kSum;
  // For a premultiplied sum: the factor by which this rank's elements are multiplied first.
  std::optional<at::Scalar> factor;

  // Returns the tensor, or a new one that is multiplied by the factor.
  at::Tensor prepared(const at::Tensor& tensor) const;
};
// Returns the reduction of a type. For bool the values are logical: sum, max and bitwise or give "any";
// product, min and bitwise and give "all"; bitwise xor gives "odd". Errors: Error(kConfig) that names both if
// there is no such reduction.
ReduceCall reduce_call(const c10d::ReduceOp& op, at::ScalarType type);

}  // namespace starling
