#include "starling/comm/call.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {
namespace {

void check_peer(const Call& call, int size) {
  if (call.rank >= 0 && call.rank < size) return;
  throw CommError(
      fmt::format("{}: rank {} does not exist in a group of {} ranks", name_of(call.kind), call.rank, size));
}

void check_partner(const Call& call, int rank, int size, const char* verb) {
  check_peer(call, size);
  if (call.rank == rank)
    throw CommError(fmt::format("{}: a rank cannot {} itself; copy instead", name_of(call.kind), verb));
}

}  // namespace

Operation operation_of(const Call& call) {
  Operation operation{
      .kind = call.kind, .type = call.type, .op = call.op, .bytes = call.count * size_of(call.type)};
  if (call.kind == CollectiveKind::kBroadcast) operation.root = call.rank;
  return operation;
}

void check_call(const Call& call, int rank, int size) {
  switch (call.kind) {
    case CollectiveKind::kBroadcast:
      return check_peer(call, size);
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
      if (!is_bitwise(call.op) || !is_floating(call.type)) return;
      throw CommError(
          fmt::format("{} of {}: bitwise operations are for integers", name_of(call.op), name_of(call.type)));
    case CollectiveKind::kAllToAll:
      if (call.in_counts.size() == static_cast<size_t>(size) &&
          call.out_counts.size() == call.in_counts.size())
        return;
      throw CommError(fmt::format("all-to-all: {} and {} splits in a group of {}; give one split per rank",
                                  call.in_counts.size(), call.out_counts.size(), size));
    case CollectiveKind::kSend:
      return check_partner(call, rank, size, "send to");
    case CollectiveKind::kRecv:
      return check_partner(call, rank, size, "receive from");
    default:
      return;
  }
}

}  // namespace starling
