// run_ranks: the ranks of a job as threads of the test's process, over a store in memory.
#pragma once

#include <functional>
#include <memory>

#include "starling/net/store.h"

namespace starling {

// One rank as the function under test sees it. The store is the same for all of them and outlives the call.
struct ThreadRank {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store;
};

// Calls `body` once a rank, each in a thread of its own, and returns when all have returned. Throws what the first rank
// to fail (in time) has thrown; what the others throw after that is dropped, being its consequence. Waits in `body` must
// have timeouts: a thread cannot be stopped from outside. gtest's EXPECT_ macros work in `body`.
void run_ranks(int size, const std::function<void(const ThreadRank&)>& body);

}  // namespace starling
