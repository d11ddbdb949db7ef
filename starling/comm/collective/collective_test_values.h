// Values that the tests of collectives fill tensors with, and the results that the tests expect.
//
// The values are small integers that every type holds exactly. Any order of summation therefore gives the
// same bits.
#pragma once

#include <cstring>
#include <vector>

#include "starling/comm/reduce/reduce_kernels.h"
#include "starling/comm/types.h"

namespace starling {

// All element types.
inline constexpr DataType kTypes[] = {DataType::kFp32,  DataType::kFp64,  DataType::kBf16,
                                      DataType::kFp16,  DataType::kInt8,  DataType::kUint8,
                                      DataType::kInt16, DataType::kInt32, DataType::kInt64};
// All operations.
inline constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kAvg,     ReduceOp::kMin,
                                    ReduceOp::kMax,   ReduceOp::kProduct, ReduceOp::kBitAnd,
                                    ReduceOp::kBitOr, ReduceOp::kBitXor};

// Returns whether a test that tries only some types and operations tries these. Such a test tries types of
// three sizes with a sum, an average and a bitwise operation.
inline bool is_common(DataType type, ReduceOp op) {
  return (type == DataType::kFp32 || type == DataType::kBf16 || type == DataType::kInt8) &&
         (op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kBitXor);
}

// Returns whether both have the same bytes. The sanitizers check all bytes of memcmp() at once. They check
// vectors of bytes, whose comparison is a loop, byte by byte.
inline bool equal_bytes(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Writes `value` to `to` as an element of `type`.
inline void store_number(DataType type, std::byte* to, int value) {
  const auto put = [&](auto v) { std::memcpy(to, &v, sizeof(v)); };
  switch (type) {
    case DataType::kFp32:
      return put(static_cast<float>(value));
    case DataType::kFp64:
      return put(static_cast<double>(value));
    case DataType::kBf16:
      return put(float_to_bf16(static_cast<float>(value)));
    case DataType::kFp16:
      return put(float_to_fp16(static_cast<float>(value)));
    case DataType::kInt8:
      return put(static_cast<int8_t>(value));
    case DataType::kUint8:
      return put(static_cast<uint8_t>(value));
    case DataType::kInt16:
      return put(static_cast<int16_t>(value));
    case DataType::kInt32:
      return put(static_cast<int32_t>(value));
    case DataType::kInt64:
      return put(static_cast<int64_t>(value));
  }
}

// Returns element i of rank `rank` in test case `salt`: a number from 0 to 6.
inline int test_number(int rank, size_t i, int salt) {
  return static_cast<int>(
             (i * 2654435761u + static_cast<size_t>(rank) * 40503u + static_cast<size_t>(salt) * 97u) >> 7) %
             7 &
         7;
}

// Returns `count` elements of rank `rank`, from element `first` on.
inline std::vector<std::byte> test_tensor(DataType type, size_t count, int rank, int salt, size_t first = 0) {
  std::vector<std::byte> out(count * size_of(type));
  for (size_t i = 0; i < count; ++i)
    store_number(type, out.data() + i * size_of(type), test_number(rank, first + i, salt));
  return out;
}

// Returns the reduction of the test tensors of `ranks` ranks, computed by reduce_naive().
inline std::vector<std::byte> reduced_tensor(DataType type, size_t count, int ranks, ReduceOp op, int salt,
                                             size_t first = 0) {
  std::vector<std::vector<std::byte>> all;
  std::vector<const void*> sources;
  all.reserve(ranks);
  sources.reserve(ranks);
  for (int r = 0; r < ranks; ++r) all.push_back(test_tensor(type, count, r, salt, first));
  for (const auto& one : all) sources.push_back(one.data());
  std::vector<std::byte> out(count * size_of(type));
  void* to[1] = {out.data()};
  Reduction job;
  job.sources = sources;
  job.destinations = to;
  job.count = count;
  job.type = type;
  job.op = op;
  reduce_naive(job);
  return out;
}

}  // namespace starling
