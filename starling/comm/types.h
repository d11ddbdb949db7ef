// Element types and reduce operations of the collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace starling {

// The message of a CommError contains this text if the awaited rank has ended its group in order.
inline constexpr std::string_view kLeftTheGroup = "left the group";

// The type of the elements of a tensor.
enum class DataType : uint8_t { kFp32, kFp64, kBf16, kFp16, kInt8, kUint8, kInt16, kInt32, kInt64 };
// How elements are combined. The bitwise operations are for integers only.
enum class ReduceOp : uint8_t { kSum, kAvg, kMin, kMax, kProduct, kBitAnd, kBitOr, kBitXor };

// Returns whether the operation works on bits.
constexpr bool is_bitwise(ReduceOp op) {
  return op >= ReduceOp::kBitAnd;
}
// Returns whether the elements are floating-point numbers.
constexpr bool is_floating(DataType type) {
  return type <= DataType::kFp16;
}

// Returns the size of an element in bytes.
constexpr size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFp64:
    case DataType::kInt64:
      return 8;
    case DataType::kFp32:
    case DataType::kInt32:
      return 4;
    case DataType::kBf16:
    case DataType::kFp16:
    case DataType::kInt16:
      return 2;
    default:
      return 1;
  }
}

// Returns the name used in messages and tables, for example "fp32", "bf16" or "int64".
const char* name_of(DataType type);
// Returns the name used in messages and tables, for example "sum" or "bitwise and".
const char* name_of(ReduceOp op);
// The kind of an operation. Errors and the records of the flight recorder name it.
enum class CollectiveKind : uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kSend,
  kRecv
};
// Returns the name used in messages, for example "all-reduce".
const char* name_of(CollectiveKind kind);

}  // namespace starling
