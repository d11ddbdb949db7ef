// The sockets, cores, caches and NUMA nodes of this machine, as Linux shows them in /sys. `starling doctor`
// prints them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace starling::doctor {

// The data caches of one level.
struct CacheLevel {
  int count = 0;       // distinct caches
  uint64_t bytes = 0;  // of one cache; the first one's size if they differ
};

// What the online processors of a machine form.
struct CpuTopology {
  int packages = 0;                  // sockets
  int cores = 0;                     // physical cores
  int units = 0;                     // hardware threads
  int numa_nodes = 0;                // at least 1 if there is a processor
  std::map<int, CacheLevel> caches;  // by level; instruction caches are not counted
};

// Reads the topology below `system`, the folder /sys/devices/system or a copy of it. What a file does not say
// counts as 0; without any processor, all numbers are 0.
CpuTopology read_cpu_topology(const std::string& system);

}  // namespace starling::doctor
