// Assigns the CPUs of a host to its ranks.
#pragma once

#include <vector>

namespace starling {

// A logical CPU that this process may use.
struct Cpu {
  int number = 0;
  int core = 0;     // equal for the hardware threads of one physical core
  int package = 0;  // socket
};

// Returns the CPUs on which this process may run, from sched_getaffinity and /sys. If /sys has no
// information, every CPU counts as a core.
std::vector<Cpu> usable_cpus();

// Divides physical cores among `ranks` in the order of package and number, so that the cores of a rank are
// adjacent. Each rank needs `threads` cores. Returns one list of CPU numbers per rank. If there are too few
// physical cores, hardware threads count as cores. If there are too few hardware threads as well, returns an
// empty list: ranks must not be pinned.
std::vector<std::vector<int>> cpu_shares(std::vector<Cpu> cpus, int ranks, int threads);

// Returns the number of physical cores among `cpus`.
int count_cores(const std::vector<Cpu>& cpus);

}  // namespace starling
