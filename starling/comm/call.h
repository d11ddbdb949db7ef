// Call: the description of one operation of a Group, as the functions of comm/group.h pass it on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "starling/comm/operation.h"
#include "starling/comm/types.h"

namespace starling {

// Call describes one operation of a group: its kind and its arguments.
struct Call {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int rank = -1;             // the root of a broadcast, or the peer of a message
  uint32_t tag = 0;          // of a message
  const void* in = nullptr;  // null if the operation works in place or only receives
  void* out = nullptr;
  size_t count = 0;                         // in elements of `type`
  std::span<const size_t> in_counts = {};   // of an all-to-all; borrowed during the call only
  std::span<const size_t> out_counts = {};  // likewise
};

// The descriptions of the operations. comm/group.h says what the parameters mean.

inline Call broadcast_call(void* data, size_t count, DataType type, int root) {
  return {.kind = CollectiveKind::kBroadcast, .type = type, .rank = root, .out = data, .count = count};
}
inline Call all_reduce_call(void* data, size_t count, DataType type, ReduceOp op) {
  return {.kind = CollectiveKind::kAllReduce, .type = type, .op = op, .out = data, .count = count};
}
inline Call reduce_scatter_call(const void* in, void* out, size_t count, DataType type, ReduceOp op) {
  return {
      .kind = CollectiveKind::kReduceScatter, .type = type, .op = op, .in = in, .out = out, .count = count};
}
inline Call all_gather_call(const void* in, void* out, size_t count, DataType type) {
  return {.kind = CollectiveKind::kAllGather, .type = type, .in = in, .out = out, .count = count};
}
inline Call all_to_all_call(const void* in, std::span<const size_t> in_counts, void* out,
                            std::span<const size_t> out_counts, DataType type) {
  return {.kind = CollectiveKind::kAllToAll,
          .type = type,
          .in = in,
          .out = out,
          .in_counts = in_counts,
          .out_counts = out_counts};
}
inline Call send_call(const void* data, size_t bytes, int peer, uint32_t tag) {
  return {.kind = CollectiveKind::kSend, .rank = peer, .tag = tag, .in = data, .count = bytes};
}
inline Call recv_call(void* data, size_t bytes, int peer, uint32_t tag) {
  return {.kind = CollectiveKind::kRecv, .rank = peer, .tag = tag, .out = data, .count = bytes};
}

// Returns what all ranks must agree on. Its sequence number is 0.
Operation operation_of(const Call& call);

// Throws CommError if an argument is wrong for rank `rank` of a group of `size` ranks.
void check_call(const Call& call, int rank, int size);

}  // namespace starling
