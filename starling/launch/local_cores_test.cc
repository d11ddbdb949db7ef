#include "starling/launch/local_cores.h"

#include <gtest/gtest.h>

#include "starling/net/memory/memory_store.h"

namespace starling {
namespace {

TEST(LocalCores, CountProcessesAndCpusOfOneHost) {
  MemoryStore store;
  put_cores(store, 0, "host-a", {{0, 0, 0}, {1, 0, 0}});
  put_cores(store, 1, "host-b", {{2, 2, 0}, {3, 3, 0}});
  put_cores(store, 2, "host-a", {{1, 0, 0}, {4, 4, 0}});  // shares CPU 1 with rank 0
  const LocalCores first = local_cores(store, 0, 3, Milliseconds(100));
  EXPECT_EQ(first.processes, 2);
  EXPECT_EQ(first.cores, 3);
  const LocalCores second = local_cores(store, 1, 3, Milliseconds(100));
  EXPECT_EQ(second.processes, 1);
  EXPECT_EQ(second.cores, 2);
}

TEST(LocalCores, AreUnknownWhereTheSystemNamesNoCpu) {
  MemoryStore store;
  put_cores(store, 0, "host-a", {});
  EXPECT_EQ(local_cores(store, 0, 1, Milliseconds(100)).cores, 0);
}

}  // namespace
}  // namespace starling
