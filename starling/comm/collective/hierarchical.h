// Collectives of a group on several hosts: shared memory within each host, TCP between the hosts' leaders (the first
// rank of each), one after the other. On hosts of one rank the shared-memory parts fall away, and what remains is the
// flat TCP collective over all ranks.
//
//   barrier        local entry; dissemination among leaders; local entry
//   broadcast      on the root's host; binomial among leaders; on the other hosts
//   all-reduce     local all-reduce; all-reduce among leaders; local broadcast          2 (h - 1) / h · N a leader
//   all-gather     local all-gather; ring of the hosts' parts; local broadcast          (h - 1) / h · p N a leader
//   reduce-scatter flat: direct exchange; several ranks a host: an all-reduce of a copy, from which each takes its part
//   all-to-all     local all-to-all for the pairs of one host; pairwise over TCP for the others
//
// for h hosts, p ranks. A sum is taken in rank order within a host, then in the order of the hosts: the same bits on all
// ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/comm/local_team.h"
#include "starling/comm/places.h"
#include "starling/comm/remote_team.h"

namespace starling {

struct Hierarchy {
  const Places& places;
  LocalTeam& local;
  RemoteTeam* leaders;   // by host; null on ranks that are not leaders
  RemoteTeam& everyone;  // by rank; only ranks of other hosts are connected
};

void hierarchical_barrier(const Hierarchy& h, const Operation& operation);
void hierarchical_broadcast(const Hierarchy& h, const Operation& operation, void* data);
void hierarchical_all_reduce(const Hierarchy& h, const Operation& operation, void* data, size_t count,
                             int divisor);
void hierarchical_reduce_scatter(const Hierarchy& h, const Operation& operation, const void* in, void* out,
                                 size_t count, int divisor);
void hierarchical_all_gather(const Hierarchy& h, const Operation& operation, const void* in, void* out);
void hierarchical_all_to_all(const Hierarchy& h, const Operation& operation, const void* in,
                             std::span<const uint64_t> in_bytes, void* out,
                             std::span<const uint64_t> out_bytes);

}  // namespace starling
