// `starling bench comm`: each collective by each algorithm that this job can use, size after size, checked and timed; by what there is
// where there is nothing to choose (shared memory, MPI).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/comm/tuning.h"

namespace starling {

struct CommTiming {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint64_t bytes = 0;                      // N as in comm/cost.h; barrier: 0
  Algorithm algorithm = Algorithm::kAuto;  // kAuto: there was nothing to choose
  std::string by;                          // its name, else that of the engine
  std::vector<double> seconds;             // one a repetition, of the slowest rank; ascending
  uint64_t errors = 0;                     // wrong elements, over all ranks

  double median() const { return seconds[seconds.size() / 2]; }
  // N / t, and that times the share of N that has to pass each link however it is done: 2 (p - 1)/p for all-reduce, (p - 1)/p for
  // all-gather, reduce-scatter and all-to-all, 1 for broadcast. Bytes a second.
  double algorithm_bandwidth() const { return static_cast<double>(bytes) / median(); }
  double bus_bandwidth(int ranks) const;
};

struct CommBench {
  uint64_t smallest = 256;
  uint64_t largest = 16 << 20;
  double seconds = 10;  // for all of it, about
  bool mpi = false;     // the groups are MPI's, which chooses its algorithms itself
};

// Makes a group of all ranks with this algorithm between hosts. Collective; ranks call it in the same order.
using GroupMaker = std::function<std::unique_ptr<Group>(Algorithm)>;

// Collective. The result is complete on rank 0. Algorithms have their turns in each repetition, so that what disturbs the machine
// disturbs all alike.
std::vector<CommTiming> bench_comm(const GroupMaker& make, const CommBench& bench);

// One table a collective, of `ranks` ranks on `hosts` hosts; or one JSON object a line.
std::string to_text(const std::vector<CommTiming>& timings, int ranks, int hosts, const std::string& link);
std::string to_json(const std::vector<CommTiming>& timings, int ranks, int hosts, const std::string& link);

// Puts the fastest algorithm of each collective and size into `tuning`; wrong results never.
void tune(Tuning& tuning, const std::vector<CommTiming>& timings, int ranks, int hosts,
          const std::string& link);

}  // namespace starling
