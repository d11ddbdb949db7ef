#include "starling/comm/operation.h"

#include <fmt/format.h>

namespace starling {

std::string describe(const Operation& o) {
  std::string head = fmt::format("{} #{}", name_of(o.kind), o.sequence);
  switch (o.kind) {
    case CollectiveKind::kBarrier:
      return head;
    case CollectiveKind::kBroadcast:
      return fmt::format("{} ({} bytes {} from rank {})", head, o.bytes, name_of(o.type), o.root);
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
      return fmt::format("{} ({} of {} bytes {})", head, name_of(o.op), o.bytes, name_of(o.type));
    case CollectiveKind::kAllToAll:
      return fmt::format("{} ({})", head, name_of(o.type));
    default:
      return fmt::format("{} ({} bytes {})", head, o.bytes, name_of(o.type));
  }
}

std::string late_warning(const std::string& what, std::chrono::milliseconds timeout) {
  const double seconds = std::chrono::duration<double>(timeout).count();
  return fmt::format("{} within {:.3g} s; the ranks that wait for it give up after {:.3g} s", what,
                     seconds / 10, seconds);
}

std::string mismatch_message(const std::string& rank_a, const Operation& a, const std::string& rank_b,
                             const Operation& b) {
  return fmt::format(
      "collectives differ: {} is in {}, {} in {}; every rank must call the same collectives in the same "
      "order with the same sizes",
      rank_a, describe(a), rank_b, describe(b));
}

}  // namespace starling
