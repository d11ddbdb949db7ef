// Processors and NUMA nodes: which processors this process may use, and which memory is near to them.
//
// The processors come from sched_getaffinity(2), and the NUMA nodes from /sys.
#pragma once

#include <string>
#include <vector>

namespace starling {

// Returns the logical processors that this process may run on, ascending.
std::vector<int> usable_processors();

// Returns the NUMA node whose memory is near to all of `processors`. Returns -1 if they belong to several
// nodes or if the machine does not say.
// `nodes` is a folder with files node<N>/cpulist in the kernel's format.
int numa_node_of(const std::vector<int>& processors, const std::string& nodes = "/sys/devices/system/node");

// Parses a list of processors: "0-3,8" gives 0 1 2 3 8. Parsing ends at the first part that is not a number
// or a range, that has a number of 65536 or more, or that would make the list longer than 65536.
std::vector<int> parse_cpu_list(const std::string& text);

// Writes a list of processors, ascending, as parse_cpu_list() reads it: 0 1 2 3 8 gives "0-3,8".
std::string cpu_list_text(const std::vector<int>& processors);

// NumaPlaces groups the local ranks of a host by NUMA node.
struct NumaPlaces {
  // The local ranks of each node, ascending. The nodes are ordered by their first rank.
  // It is empty unless every rank is bound to a node and there are several nodes with equally many ranks, at
  // least two each. Otherwise a second level of an all-reduce saves nothing.
  std::vector<std::vector<int>> nodes;
  int node = 0;   // of this rank: an index into `nodes`
  int place = 0;  // of this rank: its position in its node

  // The number of ranks on each node. `nodes` must not be empty.
  int ranks_each() const { return static_cast<int>(nodes.front().size()); }
};

// Groups the local ranks. `node_of` has the node of each local rank, or -1 if the rank is not bound to one
// node.
NumaPlaces numa_places(const std::vector<int>& node_of, int local_rank);

}  // namespace starling
