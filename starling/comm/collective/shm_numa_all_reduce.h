// All-reduce in windows among p ranks of one host on m NUMA nodes with q = p / m ranks each, so that little passes between the nodes:
//
//   1. rank i of a node reduces part i, N / q, of the windows of its node to its own, in rank order
//   2. the ranks i of all nodes, each the leader of its node for part i, reduce it over the nodes: each a slice, N / p, to all of them
//   3. rank i copies part i to the windows of its node
//
// Four synchronisations. A rank moves N bytes in and N out as in `direct` (shm_direct_all_reduce.h), but to and from other nodes only
// 2 (m - 1) / p · N of them instead of 2 (p - q) / p · N: 1 / q.
//                                      T = 4 α + 2 (p - m + 1) / p · N β + 2 (m - 1) / p · N β', β' a byte between nodes
// All ranks get the same bits: sums of the nodes in the order of the nodes' first ranks. 16-bit floats are rounded once a level.
#pragma once

#include "starling/comm/local_team.h"

namespace starling {

// From this size on, where the ranks are bound to several nodes.
constexpr size_t kNumaBytes = 256 * 1024;

// Whether the two levels are for this reduction: not for averages of types that cannot hold the sum of a node before it is divided.
inline bool numa_pays(const LocalTeam& team, DataType type, int divisor) {
  return !team.numa().nodes.empty() && (divisor == 1 || size_of(type) >= 4 || type == DataType::kBf16);
}

// After team.enter() with all tensors in windows, on a team whose numa().nodes is not empty.
void numa_all_reduce(LocalTeam& team, const Operation& operation, size_t count, int divisor);

}  // namespace starling
