// `starling bench comm` measures collectives: each collective by each algorithm that this job can use, for
// several sizes. It checks every result and measures the time. In shared memory and with MPI there is no
// choice of algorithm, so the group's own algorithm is measured.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/choice/tuning.h"
#include "starling/comm/group.h"

namespace starling {

// The measurement of one collective, algorithm and size.
struct CommTiming {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint64_t bytes = 0;                      // N as in comm/choice/cost.h; 0 for a barrier
  Algorithm algorithm = Algorithm::kAuto;  // kAuto if there is no choice
  std::string by;                          // name of the algorithm, or of the engine if there is no choice
  std::vector<double> seconds;             // one per repetition, of the slowest rank, ascending
  uint64_t errors = 0;                     // number of wrong elements over all ranks

  // The median of `seconds`.
  double median() const { return seconds[seconds.size() / 2]; }
  // Returns N / t in bytes per second.
  double algorithm_bandwidth() const { return static_cast<double>(bytes) / median(); }
  // Returns algorithm_bandwidth() times the share of N that every algorithm must move over each link. The
  // share is 2 (p - 1)/p for all-reduce, (p - 1)/p for all-gather, reduce-scatter and all-to-all, and 1 for
  // broadcast.
  double bus_bandwidth(int ranks) const;
};

// What to measure.
struct CommBench {
  uint64_t smallest = 256;
  uint64_t largest = 16 << 20;
  double seconds = 10;  // approximate duration of the whole measurement
  bool mpi = false;     // the groups are MPI's, which chooses its algorithms itself
};

// Makes a group of all ranks that uses this algorithm between hosts. Collective; all ranks call it in the
// same order.
using GroupMaker = std::function<std::unique_ptr<Group>(Algorithm)>;

// Measures. Collective. The result is complete on rank 0 only. Each repetition runs all algorithms in turn,
// so that disturbances of the machine affect all of them alike.
std::vector<CommTiming> bench_comm(const GroupMaker& make, const CommBench& bench);

// Returns one table per collective, for `ranks` ranks on `hosts` hosts.
std::string to_text(const std::vector<CommTiming>& timings, int ranks, int hosts, const std::string& link);
// Returns one JSON object per line. The last line is end_of_list().
std::string to_json(const std::vector<CommTiming>& timings, int ranks, int hosts, const std::string& link);

// Stores the fastest algorithm of each collective and size in `tuning`. Algorithms with wrong results are
// ignored.
void tune(Tuning& tuning, const std::vector<CommTiming>& timings, int ranks, int hosts,
          const std::string& link);

}  // namespace starling
