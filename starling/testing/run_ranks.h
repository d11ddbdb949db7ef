// run_ranks: runs the ranks of a job as threads of the test's process, with a store in memory.
#pragma once

#include <functional>
#include <memory>

#include "starling/net/store/store.h"

namespace starling {

// ThreadRank is what the function under test knows of its rank. All ranks have the same store, which outlives
// the call.
struct ThreadRank {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store;
};

// Calls `body` once per rank, each in a thread of its own, and returns when all have returned. It throws the
// exception of the rank that failed first. Later exceptions are dropped, because they follow from the first.
// Waits in `body` must have timeouts, because a thread cannot be stopped from outside. The EXPECT_ macros of
// gtest work in `body`.
void run_ranks(int size, const std::function<void(const ThreadRank&)>& body);

}  // namespace starling
