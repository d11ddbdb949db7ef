#include "starling/c10d/data_type.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {
namespace {

const char* refused_name(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::BAND:
      return "bitwise and";
    case c10d::ReduceOp::BOR:
      return "bitwise or";
    case c10d::ReduceOp::BXOR:
      return "bitwise xor";
    case c10d::ReduceOp::PREMUL_SUM:
      return "premultiplied sum";
    default:
      return "unknown";
  }
}

}  // namespace

DataType data_type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFp32;
    case at::kDouble:
      return DataType::kFp64;
    case at::kBFloat16:
      return DataType::kBf16;
    case at::kHalf:
      return DataType::kFp16;
    case at::kChar:
      return DataType::kInt8;
    case at::kByte:
      return DataType::kUint8;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    default:
      throw Error(
          ErrorCode::kConfig,
          fmt::format(
              "the backend starling does not communicate tensors of type {}; convert to one of Float, "
              "Double, BFloat16, Half, Char, Byte, Int, Long",
              c10::toString(type)));
  }
}

ReduceOp reduce_op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    default:
      throw Error(
          ErrorCode::kConfig,
          fmt::format("the backend starling does not reduce by {}; it has sum, avg, min, max and product",
                      refused_name(op.op_)));
  }
}

}  // namespace starling
