// All-reduce in windows among p ranks of one host on m NUMA nodes, q = p / m ranks each. Little passes
// between the nodes:
//
//   1. Rank i of a node reduces part i (N / q bytes) of the windows of its node to its own window, in
//      rank order.
//   2. The ranks i of all nodes reduce part i over the nodes. Each of them reduces a slice of N / p
//      bytes and stores the result to the windows of all of them.
//   3. Rank i copies part i to the windows of its node.
//
// There are four synchronizations. A rank reads and writes 2 (p - 1) / p · N bytes in windows of other ranks,
// as in `direct` (shm_direct_all_reduce.h). Only 2 (m - 1) / p · N of them pass between nodes, instead of
// 2 (p - q) / p · N. That is the fraction 1 / q. A rank also reads and writes its own window, so the time is:
//
//   T = 4 α + (3 - (m - 2) / p) N β + 2 (m - 1) / p · N β'
//
// β' is the time for one byte between nodes.
// All ranks get the same bits: the sums of the nodes are added in the order of the nodes' first ranks. 16-bit
// floats are rounded once per level.
#pragma once

#include "starling/comm/host/local_team.h"

namespace starling {

// Tensors that have at least this size and lie in windows use two levels if numa_pays() is true.
constexpr size_t kNumaBytes = 256 * 1024;

// Returns whether two levels are used for this reduction. They are not used for averages of types that may
// not hold the sum of a node before it is divided.
inline bool numa_pays(const LocalTeam& team, DataType type, int divisor) {
  return !team.numa().nodes.empty() && (divisor == 1 || size_of(type) >= 4 || type == DataType::kBf16);
}

// Reduces `count` elements in place and divides sums by `divisor`. The caller has called team.enter() with
// all tensors in windows. numa_pays() must be true.
void numa_all_reduce(LocalTeam& team, const Operation& operation, size_t count, int divisor);

}  // namespace starling
