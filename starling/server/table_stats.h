// What a shard has counted, and the order in which it did things.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace starling {

// Staleness from here on shares the last bin of the histogram; the maximum is exact.
inline constexpr int64_t kLastStalenessBin = 255;

struct TableStats {
  std::map<int64_t, uint64_t> staleness;  // how many reads missed this many clocks of the slowest worker
  int64_t max_staleness = 0;
  uint64_t reads = 0;
  uint64_t updates = 0;          // of the master copy: one a clock when synchronous, else one a push
  uint64_t late_dropped = 0;     // gradients that came after their clock was complete (backup workers)
  uint64_t retired = 0;          // workers that were lost
  std::vector<int> lost;         // who, in the order of their loss
  std::vector<uint64_t> pushes;  // by worker, late ones too
  uint64_t requests() const {
    uint64_t sum = reads;
    for (const uint64_t p : pushes) sum += p;
    return sum;
  }
};

enum class TableAction : int64_t {
  kRead,    // worker read at clock
  kPush,    // worker's gradient of clock was applied; value: τ
  kHold,    // worker's gradient waits for its clock to be complete
  kDrop,    // worker's gradient came too late, or its clock was broken off by a loss
  kUpdate,  // the clock was complete: the mean of the gradients held was applied; value: how many
  kRetire   // the worker was taken out
};

struct TableEvent {
  TableAction action = TableAction::kRead;
  int64_t worker = -1;
  int64_t clock = 0;
  int64_t value = 0;
  bool operator==(const TableEvent&) const = default;
};

}  // namespace starling
