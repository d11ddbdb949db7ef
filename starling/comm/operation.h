// Operation: what a collective is, as every rank must agree on it; carried by each collective and compared.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "starling/comm/types.h"

namespace starling {

struct Operation {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;       // broadcast only
  uint64_t bytes = 0;     // of one rank's contribution; 0 where ranks differ (all-to-all)
  uint64_t sequence = 0;  // 1 for the group's first collective
  bool operator==(const Operation&) const = default;
};

// "all-reduce #12 (sum of 4096 bytes fp32)".
std::string describe(const Operation& operation);

// The warning at a tenth of `timeout`, equal on all ranks that wait. what: "rank 2 (node-b) did not enter barrier #7".
std::string late_warning(const std::string& what, std::chrono::milliseconds timeout);

// The message of the CommError: "collectives differ: rank 0 (node-a) is in …, rank 1 (node-b) in …; …".
std::string mismatch_message(const std::string& rank_a, const Operation& a, const std::string& rank_b,
                             const Operation& b);

}  // namespace starling
