#include "starling/c10d/data_type.h"

#include <ATen/ops/mul.h>
#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {
namespace {

// Returns the counterpart of a type, or nothing.
std::optional<DataType> known_type(at::ScalarType type) {
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
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    default:
      return std::nullopt;
  }
}

// Returns the operation that gives the logical result on values 0 and 1.
ReduceOp logical(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
      return ReduceOp::kBitOr;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
      return ReduceOp::kBitAnd;
    default:
      return op;
  }
}

[[noreturn]] void refuse(ReduceOp op, at::ScalarType type, const char* remedy) {
  throw Error(ErrorCode::kConfig, fmt::format("the backend starling has no {} of {} tensors; {}", name_of(op),
                                              c10::toString(type), remedy));
}

at::Scalar factor_of(const c10d::ReduceOp& op) {
  const auto* supplement = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw Error(ErrorCode::kConfig, "a premultiplied sum without its factor; make it by makePreMulSum()");
  }
  if (supplement->tensor_factor.defined()) return supplement->tensor_factor.item();
  return supplement->double_factor;
}

}  // namespace

DataType data_type_of(at::ScalarType type) {
  if (const auto known = known_type(type)) return *known;
  throw Error(ErrorCode::kConfig,
              fmt::format("the backend starling does not reduce tensors of type {}; convert to one of Float, "
                          "Double, BFloat16, Half, Char, Byte, Short, Int, Long",
                          c10::toString(type)));
}

ReduceOp reduce_op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBitXor;
    default:
      throw Error(ErrorCode::kConfig,
                  fmt::format("the backend starling has no reduce operation {}", static_cast<int>(op.op_)));
  }
}

Travel travel_of(at::ScalarType type) {
  if (const auto known = known_type(type)) return {*known, 1};
  return {DataType::kUint8, c10::elementSize(type)};
}

ReduceCall reduce_call(const c10d::ReduceOp& op, at::ScalarType type) {
  ReduceCall call;
  call.op = reduce_op_of(op);
  const bool premultiplied = op.op_ == c10d::ReduceOp::PREMUL_SUM;
  if (type == at::kBool) {
    if (call.op == ReduceOp::kAvg || premultiplied) refuse(call.op, type, "convert to Float");
    return {DataType::kUint8, logical(call.op), std::nullopt};
  }
  call.type = data_type_of(type);
  if (is_bitwise(call.op) && is_floating(call.type))
    refuse(call.op, type, "bitwise operations are for integers");
  if (!premultiplied) return call;
  if (!is_floating(call.type)) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("a premultiplied sum of {} tensors; it is for floating-point ones: multiply before a sum",
                    c10::toString(type)));
  }
  call.factor = factor_of(op);
  return call;
}

at::Tensor ReduceCall::prepared(const at::Tensor& tensor) const {
  return factor ? at::mul(tensor, *factor) : tensor;
}

}  // namespace starling
