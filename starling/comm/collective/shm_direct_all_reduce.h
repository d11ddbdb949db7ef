// All-reduce among the p ranks of one host, for a tensor of N bytes.
//
// direct (tensors in windows): each rank reduces its slice of N / p bytes over all p windows, in rank order.
// It stores the result to all p windows. There are two synchronizations and no copy. A rank reads N bytes and
// writes N bytes, and 2 (p - 1) / p · N of them belong to windows of other ranks:
//                                                                       T = 2 α + 2 N β
// If ranks share cores and NumaPlaces has no nodes (host/numa.h), a running rank also reduces the slices of
// ranks that wait for a core. This applies up to 4 MB and saves one of two turns on the core.
// If NumaPlaces has nodes, tensors of 256 KB and more use shm_numa_all_reduce.h.
//
// flat (up to 2 KB; if ranks share cores, up to kFlatBytes): each rank copies its tensor to its staging slot.
// It then reduces the tensors of all ranks to its own memory. There is one synchronization:
//                                                                       T = α + (3 + p) N β
//
// sliced (ordinary memory): each rank copies the slices of the other ranks in a chunk to its staging slot. It
// reduces its own slice over its memory and the slots of the other ranks, and stores the result to all of
// them. Then it takes the other results out of its slot. The synchronizations of a chunk overlap the next
// chunk:
//                                                                       T = 2 α + (2 + 4 (p - 1) / p) N β
//
// α is the time for one cache line from core to core. β is the time for one byte through the memory or
// cache that holds N. Stores bypass the caches from stream_bytes() on.
#pragma once

#include <cstddef>

#include "starling/comm/host/local_team.h"

namespace starling {

// Returns the size from which on tensors are stored past the caches: 16 MB, or the size of the last-level
// cache if that is larger.
size_t stream_bytes();

// Reduces `count` elements in place. All ranks of the team get the same bits.
// A sum is divided by `divisor`. For kAvg the caller passes the number of values, or 1 if it divides later.
void shm_all_reduce(LocalTeam& team, const Operation& operation, void* data, size_t count, int divisor);

}  // namespace starling
