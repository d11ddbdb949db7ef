// Measures how long the machine takes to move the bytes of an all-reduce between the ranks of a host.
//
// The measurement has no arithmetic, no waiting and no agreement between ranks. comm_bench prints it beside
// the times of the collectives as a physical limit.
#pragma once

#include <cstddef>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// TransferTimes holds the microseconds of each repetition, in ascending order. They are the core time of this
// rank. If there are more ranks than cores, they are multiplied by ranks / cores.
struct TransferTimes {
  // Reading this rank's part, N / p bytes, of every other rank's tensor, which that rank has just written. An
  // all-reduce in place in windows needs at least the larger one of `read` and `copy`.
  std::vector<double> read;
  // Reading and writing N bytes of memory.
  std::vector<double> copy;
  // Writing and reading through staging slots of 1 MiB what an all-reduce of ordinary memory writes and reads
  // there (`sliced` in comm/collective/shm_direct_all_reduce.h).
  std::vector<double> staging;
};

// Measures transfers of `bytes` bytes. Every rank of the group must call it, and all ranks must share memory.
// `window` must hold at least max(bytes, 1 MiB) per rank. Its contents are lost.
TransferTimes measure_transfers(Group& group, const Window& window, size_t bytes, int repetitions);

}  // namespace starling
