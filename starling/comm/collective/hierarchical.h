// Collectives of a group on several hosts: shared memory within each host, one of the algorithms of this folder between hosts, one
// after the other. On hosts of one rank the shared-memory parts fall away, and what remains is the flat collective over
// all ranks.
//
// Between hosts ranks meet in lanes: lane k is the k-th rank of every host; as many lanes as the smallest host has ranks. Lane 0
// is made of the hosts' leaders. For h hosts, p ranks, N bytes as in comm/cost.h:
//
//                    within a host                     between hosts                                          bytes a host sends
//   barrier          entry, before and after           dissemination among leaders                            none
//   broadcast        on the root's host; on the others binomial tree among leaders                            ⌈log2 h⌉ N at most
//   all-reduce       all-reduce; broadcast             each lane all-reduces its part of the tensor           2 (h - 1)/h N
//                                                      (from kLaneBytes on; else the leaders)                 by ring or direct
//   all-gather       all-gather; broadcast             all-gather of the hosts' parts among leaders           (h - 1)/h N by ring
//   reduce-scatter   flat: the algorithm over all ranks; several ranks a host: an all-reduce of a copy, from which each takes its part
//   all-to-all       the pairs of one host             pairwise for the others; bruck where it is named and all ranks are apart
//
// Cost: T(shared memory, shm_*.h) + T(algorithm among h). A flat ring over the p ranks sends 2 (p - 1)/p N from each host: for two
// hosts of two ranks half as much again. A sum is taken in rank order within a host; that over the hosts by the algorithm: the
// same bits on all ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/comm/choice.h"
#include "starling/comm/local_team.h"
#include "starling/comm/places.h"
#include "starling/comm/remote_team.h"

namespace starling {

struct Hierarchy {
  const Places& places;
  LocalTeam& local;
  RemoteTeam* lane;  // by host; null on ranks beyond the last lane
  int lanes;
  RemoteTeam& everyone;  // by rank; only ranks of other hosts are connected
  const Choice& choice;

  RemoteTeam* leaders() const { return places.is_leader() ? lane : nullptr; }
};

// Tensors of this size are divided among the lanes.
constexpr size_t kLaneBytes = 256 * 1024;

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
