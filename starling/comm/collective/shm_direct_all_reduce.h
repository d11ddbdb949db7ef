// All-reduce among the p ranks of one host.
//
// direct (tensors in windows): each rank reduces its slice of N / p bytes over all p windows, in rank order, and stores
// the result to all p windows. Two synchronisations, no copy. A rank moves N bytes in and N out, 2 (p - 1) / p · N of
// them from or to others' windows:                                                   T = 2 α + 2 N β
// Where ranks share cores and are not bound to NUMA nodes, up to 4 MB who has a core also does the slices of those who wait for it: one turn on the core
// instead of two.
// Where the ranks are bound to several NUMA nodes, from 256 KB on: shm_numa_all_reduce.h.
// flat (up to 2 KB; where ranks share cores, to kFlatBytes): each rank puts its tensor into its slot and reduces everybody's to its own memory. One
// synchronisation:                                                                   T = α + (3 + p) N β
// sliced (ordinary memory): each rank puts the others' slices of a chunk into its slot, reduces its own over its memory and
// the others' slots, stores the result to all of them, and takes the other results out of its slot. Synchronisations of a
// chunk are hidden behind the next:                                                  T = 2 α + (2 + 4 (p - 1) / p) N β
// α: one cache line from core to core; β: a byte through the memory or cache that holds N. Stores bypass the caches
// from stream_bytes() on.
#pragma once

#include <cstddef>

#include "starling/comm/local_team.h"

namespace starling {

// Tensors of this size are stored past the caches: 16 MB, or the last-level cache where it is larger (measured on a cache
// of 105 MB: plain stores took half the time up to 64 MB).
size_t stream_bytes();

// In place. All ranks of the team get the same bits. divisor: 1, or what a sum is divided by (kAvg: give kSum and it).
void shm_all_reduce(LocalTeam& team, const Operation& operation, void* data, size_t count, int divisor);

}  // namespace starling
