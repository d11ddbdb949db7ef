// Element types and reduce operations of the collectives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace starling {

enum class DataType : uint8_t { kFp32, kFp64, kBf16, kFp16, kInt8, kUint8, kInt16, kInt32, kInt64 };
// The bitwise ones are for integers.
enum class ReduceOp : uint8_t { kSum, kAvg, kMin, kMax, kProduct, kBitAnd, kBitOr, kBitXor };

constexpr bool is_bitwise(ReduceOp op) {
  return op >= ReduceOp::kBitAnd;
}
constexpr bool is_floating(DataType type) {
  return type <= DataType::kFp16;
}

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

// The name used in messages and tables: "fp32", "bf16", "int64" …
const char* name_of(DataType type);
const char* name_of(ReduceOp op);
// The collectives, named in every error and in the flight recorder.
enum class CollectiveKind : uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kSend,
  kRecv,
  kReduce,
  kGather,
  kScatter
};
const char* name_of(CollectiveKind kind);

}  // namespace starling
