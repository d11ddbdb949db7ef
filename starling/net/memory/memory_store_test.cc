#include "starling/net/memory/memory_store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "starling/base/error.h"
#include "starling/net/store/store_table.h"

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
    store.put_fd("window", memory.get(), 0);
  }
  const UniqueFd copy = store.get_fd("window", Milliseconds(0));
  EXPECT_EQ(::lseek(copy.get(), 0, SEEK_END), 4096);
  EXPECT_THROW(store.get_fd("none", Milliseconds(1)), TimeoutError);
  EXPECT_THROW(store.put_fd("bad", -1, 0), CommError);
}

TEST(MemoryStore, KeepsTheFirstValueErasesPrefixesAndClosesReadDescriptors) {
  MemoryStore store;
  EXPECT_EQ(store.put_if_absent("a/x", "1"), "1");
  EXPECT_EQ(store.put_if_absent("a/x", "2"), "1");
  const UniqueFd memory(::memfd_create("memory store test", MFD_CLOEXEC));
  store.put_fd("a/w", memory.get(), 1);
  store.put_fd("a/v", memory.get(), 0);
  EXPECT_TRUE(store.get_fd("a/w", Milliseconds(0)).valid());
  EXPECT_THROW(store.get_fd("a/w", Milliseconds(0)), TimeoutError);
  store.erase("a/");
  EXPECT_FALSE(store.try_get("a/x"));
  EXPECT_THROW(store.get_fd("a/v", Milliseconds(0)), TimeoutError);
}

TEST(MemoryStore, GathersAndLists) {
  MemoryStore store;
  store.put("at/0", "a");
  store.put("at/1", "b");
  store.put("au", "c");
  EXPECT_EQ(store.gather("at/", 2, Milliseconds(0)), (std::vector<std::string>{"a", "b"}));
  try {
    store.gather("at/", 3, Milliseconds(1));
    ADD_FAILURE() << "a value that nobody has put";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peer(), 2);
  }
  EXPECT_EQ(store.list("at/"), (std::map<std::string, std::string>{{"at/0", "a"}, {"at/1", "b"}}));
}

TEST(MemoryStore, RefusesWhatIsTooLarge) {
  MemoryStore store;
  EXPECT_THROW(store.put("", "x"), CommError);
  EXPECT_THROW(store.put(std::string(kMaxStoreKeyBytes + 1, 'k'), "x"), CommError);
  EXPECT_THROW(store.put("k", std::string(kMaxStoreValueBytes + 1, 'v')), CommError);
}

}  // namespace
}  // namespace starling
