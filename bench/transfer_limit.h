// What the machine takes to move the bytes of an all-reduce between the ranks of a host, without arithmetic, waiting or agreement: the
// physical limit beside which comm_bench shows the times of the collectives.
#pragma once

#include <cstddef>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// Microseconds of each repetition, ascending: of this rank on its core, times ranks / cores where there are more ranks.
struct TransferTimes {
  // In place in windows, a rank must at least read its part, N / p, of each other rank's tensor, which that rank has just written, and
  // read and write N bytes of memory: the greater of both is the limit.
  std::vector<double> read;
  std::vector<double> copy;
  // By way of staging slots of 1 MiB: writing and reading what the all-reduce of ordinary memory writes and reads there
  // (`sliced` in shm_direct_all_reduce.h).
  std::vector<double> staging;
};

// Collective over a group whose ranks share memory. `window` holds at least max(bytes, 1 MiB) a rank; its contents are lost.
TransferTimes measure_transfers(Group& group, const Window& window, size_t bytes, int repetitions);

}  // namespace starling
