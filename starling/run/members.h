// Members: which ranks of a run are left, and how they agree on it when some are lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "starling/net/store.h"

namespace starling {

struct Members {
  int64_t generation = 0;  // counts changes
  std::vector<int> ranks;  // as the run numbered them when it began, ascending
};

// The ranks 0 … ranks - 1 of generation 0.
Members all_members(int ranks);

// Collective over the ranks of `before` that are left: the members of the next generation, the same on all of them. Each says
// in the store that it is here; the lowest that is not lost (lost_key) waits until every other one is here or lost, and writes
// the list. Who lives but does not come within `patience` (it may be in a long computation) is taken for lost, and told so
// when it does come: Error(kInterrupted). Takes milliseconds where all that live come at once.
// Errors: TimeoutError where no list comes.
Members agree_on_members(Store& store, int rank, const Members& before, std::chrono::milliseconds patience);

// This rank has finished the run: those that are left do not wait for it any more.
void leave_members(Store& store, int rank);

}  // namespace starling
