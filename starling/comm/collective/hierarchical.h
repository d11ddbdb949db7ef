// Collectives of a group on several hosts.
//
// They use shared memory within each host and an algorithm of this folder between hosts, in turn. If every
// host has one rank, the steps in shared memory are left out. The collective then is the flat one over all
// ranks.
//
// Between hosts, ranks communicate in lanes. Lane k consists of the k-th rank of every host. There are as
// many lanes as the smallest host has ranks. Lane 0 consists of the leaders. For h hosts, p ranks and N bytes
// as in comm/choice/cost.h:
//
//                    within a host               between hosts                      bytes sent per host
//   barrier          enter() before and after    dissemination among the leaders    none
//   broadcast        broadcast                   binomial tree among the leaders    ⌈log2 h⌉ N at most
//   all-reduce       all-reduce, broadcast       all-reduce of a part by each lane  2 (h - 1)/h N
//   all-gather       all-gather, broadcast       all-gather among the leaders       (h - 1)/h N
//   reduce-scatter   as an all-reduce            as an all-reduce
//   all-to-all       all-to-all                  pairwise, or bruck
//
// broadcast: the root's host broadcasts before the leaders do, and the other hosts afterwards.
// all-reduce: below kLaneBytes, the leaders reduce the whole tensor. The bytes are those of ring and direct.
// all-gather: the bytes are those of ring.
// reduce-scatter: each rank takes its part from an all-reduce of a copy. If every host has one rank, the
// algorithm runs over all ranks instead.
// all-to-all: bruck is used if it is chosen, every host has one rank, and all blocks have one size.
//
// Cost: T(shared memory, shm_*.h) + T(algorithm among h hosts). A flat ring over all p ranks would send
// 2 (p - 1)/p N bytes from each host. For two hosts with two ranks each, these are 1.5 times as many bytes.
// Sums are taken in rank order within a host. The algorithm determines the order over the hosts. All ranks
// get the same bits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/comm/choice/choice.h"
#include "starling/comm/group.h"
#include "starling/comm/host/local_team.h"
#include "starling/comm/network/places.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Hierarchy is what the collectives need to know about the hosts of a group.
struct Hierarchy {
  const Places& places;
  LocalTeam& local;
  RemoteTeam* lane;  // positions are hosts; null on ranks beyond the last lane
  int lanes;
  RemoteTeam& everyone;  // positions are ranks; only ranks of other hosts are connected
  const Choice& choice;
  const RemoteAllReduce& all_reduce;  // the all-reduce that the program brings; empty if it brings none

  // The team of the leaders; null on ranks that are not their host's leader.
  RemoteTeam* leaders() const { return places.is_leader() ? lane : nullptr; }
};

// Tensors of at least this size are divided among the lanes.
constexpr size_t kLaneBytes = 256 * 1024;

// Returns when all ranks have called it.
void hierarchical_barrier(const Hierarchy& h, const Operation& operation);
// Copies operation.bytes bytes at `data` of rank operation.root to all ranks.
void hierarchical_broadcast(const Hierarchy& h, const Operation& operation, void* data);
// Reduces `count` elements in place and divides sums by `divisor`.
void hierarchical_all_reduce(const Hierarchy& h, const Operation& operation, void* data, size_t count,
                             int divisor);
// Reduces p * count elements at `in`. Each rank gets its `count` elements in `out`.
void hierarchical_reduce_scatter(const Hierarchy& h, const Operation& operation, const void* in, void* out,
                                 size_t count, int divisor);
// Gathers operation.bytes bytes at `in` of each rank into `out`, in rank order.
void hierarchical_all_gather(const Hierarchy& h, const Operation& operation, const void* in, void* out);
// Sends part r of `in` to rank r and receives part r of `out` from rank r. The sizes are in bytes.
void hierarchical_all_to_all(const Hierarchy& h, const Operation& operation, const void* in,
                             std::span<const uint64_t> in_bytes, void* out,
                             std::span<const uint64_t> out_bytes);

}  // namespace starling
