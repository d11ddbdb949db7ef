// The counts of a server shard and the events that it records.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace starling {

// The last bin of the histogram of staleness, which also counts all larger values. The maximum is exact.
inline constexpr int64_t kLastStalenessBin = 255;

// What a shard has counted.
struct ServerTableStats {
  // Number of reads, by the clocks of the slowest worker that they missed.
  std::map<int64_t, uint64_t> staleness;
  int64_t max_staleness = 0;
  uint64_t reads = 0;
  uint64_t updates = 0;          // of the parameters: one per clock if synchronous, otherwise one per push
  uint64_t late_dropped = 0;     // gradients that arrived after their clock was complete (backup workers)
  uint64_t retired = 0;          // number of lost workers
  std::vector<int> lost;         // the lost workers, in the order of their loss
  std::vector<uint64_t> pushes;  // by worker, dropped ones included
  // Returns the number of reads and pushes.
  uint64_t requests() const {
    uint64_t sum = reads;
    for (const uint64_t p : pushes) sum += p;
    return sum;
  }
};

// What a shard did.
enum class ServerTableAction : int64_t {
  kRead,    // a worker read at a clock; value: the staleness
  kPush,    // a worker's gradient of a clock was applied; value: the greatest τ of its partitions
  kHold,    // a worker's gradient waits until its clock is complete
  kDrop,    // a worker's gradient arrived too late, or its clock was begun again after a loss
  kUpdate,  // a clock was complete and the mean of its gradients was applied; value: their number
  kRetire   // a worker was removed; value: 1 if it was lost, 0 if it said goodbye
};

// One action of a shard.
struct ServerTableEvent {
  ServerTableAction action = ServerTableAction::kRead;
  int64_t worker = -1;
  int64_t clock = 0;
  int64_t value = 0;
  bool operator==(const ServerTableEvent&) const = default;
};

}  // namespace starling
