// Operation: the description of a collective on which all ranks must agree. Every collective carries its
// Operation, and the ranks compare them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "starling/comm/types.h"

namespace starling {

// Operation describes one call of a collective. Ranks that call the same collective with the same arguments
// have equal operations.
struct Operation {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;       // broadcast only
  uint64_t bytes = 0;     // one rank's tensor (reduce-scatter: one part); 0 if ranks may differ (all-to-all)
  uint64_t sequence = 0;  // 1 for the group's first collective
  bool operator==(const Operation&) const = default;
};

// Returns a text such as "all-reduce #12 (sum of 4096 bytes fp32)".
std::string describe(const Operation& operation);

// Returns the text of the warning that a waiting rank gives after a tenth of `timeout`. `what` says what did
// not happen, for example "rank 2 (node-b) did not enter barrier #7".
std::string late_warning(const std::string& what, std::chrono::milliseconds timeout);

// Returns the message of the CommError if two ranks are in different collectives. The message reads
// "collectives differ: rank 0 (node-a) is in …, rank 1 (node-b) in …; …".
std::string mismatch_message(const std::string& rank_a, const Operation& a, const std::string& rank_b,
                             const Operation& b);

}  // namespace starling
