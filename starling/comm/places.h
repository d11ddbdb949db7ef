// Places: which rank of a group is on which host; equal on all ranks.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace starling {

struct Places {
  int rank = 0;
  std::vector<std::string> host_names;  // of each rank, for messages
  std::vector<std::vector<int>>
      hosts;                 // the ranks of each host that share memory, ascending; hosts by their first rank
  std::vector<int> host_of;  // of each rank, an index into `hosts`
  std::vector<int> local_numa = {};  // the NUMA node of each rank of this host, -1: not bound to one
  int local_processors = 0;          // that the ranks of this host may run on, together

  int size() const { return static_cast<int>(host_of.size()); }
  int my_host() const { return host_of[rank]; }
  const std::vector<int>& local() const { return hosts[host_of[rank]]; }
  int local_rank_of(int other) const {
    const auto& ranks = hosts[host_of[other]];
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), other) - ranks.begin());
  }
  bool is_leader() const { return local().front() == rank; }
  // Ranks in the order of hosts are ranks in ascending order.
  bool is_contiguous() const { return std::is_sorted(host_of.begin(), host_of.end()); }
};

}  // namespace starling
