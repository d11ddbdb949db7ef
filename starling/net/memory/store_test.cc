#include "starling/net/memory/store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "starling/base/error.h"
#include "starling/net/store_table.h"

namespace starling {
namespace {

TEST(MemoryStore, GetWaitsForPut) {
  MemoryStore store;
  std::thread other([&] { store.put("a", "1"); });
  EXPECT_EQ(store.get("a", Milliseconds(30'000)), "1");
  other.join();
  store.put("a", "2");
  EXPECT_EQ(store.try_get("a"), "2");
  EXPECT_EQ(store.try_get("b"), std::nullopt);
  EXPECT_THROW(store.get("b", Milliseconds(1)), TimeoutError);
}

TEST(MemoryStore, AddsNumbers) {
  MemoryStore store;
  EXPECT_EQ(store.add("n", 2), 2);
  EXPECT_EQ(store.add("n", -5), -3);
  EXPECT_EQ(store.get("n", Milliseconds(0)), "-3");
  store.put("n", "x");
  EXPECT_THROW(store.add("n", 1), CommError);
  store.put("n", "9223372036854775807");
  EXPECT_THROW(store.add("n", 1), CommError);
}

TEST(MemoryStore, PassesDescriptors) {
  MemoryStore store;
  {
    UniqueFd memory(::memfd_create("store test", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memory.get(), 4096), 0);
    store.put_fd("window", memory.get());
  }
  const UniqueFd copy = store.get_fd("window", Milliseconds(0));
  EXPECT_EQ(::lseek(copy.get(), 0, SEEK_END), 4096);
  EXPECT_THROW(store.get_fd("none", Milliseconds(1)), TimeoutError);
  EXPECT_THROW(store.put_fd("bad", -1), CommError);
}

TEST(MemoryStore, RefusesWhatIsTooLarge) {
  MemoryStore store;
  EXPECT_THROW(store.put("", "x"), CommError);
  EXPECT_THROW(store.put(std::string(kMaxStoreKeyBytes + 1, 'k'), "x"), CommError);
  EXPECT_THROW(store.put("k", std::string(kMaxStoreValueBytes + 1, 'v')), CommError);
}

}  // namespace
}  // namespace starling
