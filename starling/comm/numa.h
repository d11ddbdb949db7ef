// Which processors a process may use and which memory is near to them: what a group asks when its ranks meet.
//
// Of /sys, not by hwloc: this is one small file a node, while a group is made in a millisecond and hwloc takes tens to look at a machine.
#pragma once

#include <string>
#include <vector>

namespace starling {

// The logical processors that this process may run on, ascending.
std::vector<int> usable_processors();

// The NUMA node whose memory is near to all of `processors`; -1 where they are of several nodes, or the machine does not say.
// nodes: a folder with node<N>/cpulist, as the kernel's.
int numa_node_of(const std::vector<int>& processors, const std::string& nodes = "/sys/devices/system/node");

// "0-3,8" as 0 1 2 3 8; text that is no such list ends what is read.
std::vector<int> parse_cpu_list(const std::string& text);

// The local ranks of a host by NUMA node.
struct NumaPlaces {
  // The local ranks of each node, ascending, nodes by their first rank; empty unless there are several nodes with equally many ranks, two
  // at least: else a second level saves nothing.
  std::vector<std::vector<int>> nodes;
  int node = 0;   // of this rank, an index into `nodes`
  int place = 0;  // of this rank in its node

  int ranks_each() const { return static_cast<int>(nodes.front().size()); }
};

// node_of: of each local rank, -1 where it is not bound to one node.
NumaPlaces numa_places(const std::vector<int>& node_of, int local_rank);

}  // namespace starling
