// Places: which rank of a group is on which host. All ranks have equal lists.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace starling {

// Places is one rank's view of the hosts of its group.
struct Places {
  int rank = 0;
  std::vector<std::string> host_names;  // of each rank, for messages
  // The ranks of each host that share memory, ascending. The hosts are ordered by their first rank.
  std::vector<std::vector<int>> hosts;
  std::vector<int> host_of;          // of each rank: an index into `hosts`
  std::vector<int> local_numa = {};  // the NUMA node of each rank of this host; -1: the rank is bound to none
  int local_processors = 0;          // how many processors the ranks of this host may use together

  // The number of ranks of the group.
  int size() const { return static_cast<int>(host_of.size()); }
  // The index of this rank's host.
  int my_host() const { return host_of[rank]; }
  // The ranks of this host, ascending.
  const std::vector<int>& local() const { return hosts[host_of[rank]]; }
  // The position of a rank among the ranks of its host.
  int local_rank_of(int other) const {
    const auto& ranks = hosts[host_of[other]];
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), other) - ranks.begin());
  }
  // Whether this rank is the first of its host.
  bool is_leader() const { return local().front() == rank; }
  // Whether the ranks of each host follow one another, in the order of the hosts.
  bool is_contiguous() const { return std::is_sorted(host_of.begin(), host_of.end()); }
};

}  // namespace starling
