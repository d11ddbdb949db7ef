// Which CPUs each rank of a host runs on.
#pragma once

#include <vector>

namespace starling {

// One logical CPU that we may use.
struct Cpu {
  int number = 0;
  int core = 0;     // equal for the hardware threads of one physical core
  int package = 0;  // socket
};

// The CPUs that this process may run on, from sched_getaffinity and /sys; every CPU is its own core where /sys is silent.
std::vector<Cpu> usable_cpus();

// Divides whole physical cores among `ranks`, in order of package and number, so that a rank's cores are neighbours: one
// list of CPU numbers a rank. Where there are fewer cores than threads, hardware threads count as cores; empty (do not pin)
// where those are too few as well.
std::vector<std::vector<int>> cpu_shares(std::vector<Cpu> cpus, int ranks, int threads);

// Physical cores among `cpus`.
int count_cores(const std::vector<Cpu>& cpus);

}  // namespace starling
