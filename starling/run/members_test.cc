#include "starling/run/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "starling/base/error.h"
#include "starling/net/memory/store.h"
#include "starling/net/store_server.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

// Each rank of `present` agrees on a thread of its own.
std::vector<std::vector<int>> agree(Store& store, const Members& before, const std::vector<int>& present,
                                    milliseconds patience = milliseconds(5000)) {
  std::vector<std::vector<int>> found(present.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < present.size(); ++i) {
    threads.emplace_back([&, i] {
      const Members next = agree_on_members(store, present[i], before, patience);
      EXPECT_EQ(next.generation, before.generation + 1);
      found[i] = next.ranks;
    });
  }
  for (std::thread& t : threads) t.join();
  return found;
}

TEST(Members, ThoseThatAreLeftAgree) {
  MemoryStore store;
  store.put(lost_key(2), "killed");
  EXPECT_THAT(agree(store, all_members(4), {0, 1, 3}), testing::Each(ElementsAre(0, 1, 3)));
}

TEST(Members, TheLowestThatIsLeftWritesTheList) {
  MemoryStore store;
  store.put(lost_key(0), "killed");
  EXPECT_THAT(agree(store, all_members(3), {1, 2}), testing::Each(ElementsAre(1, 2)));
  store.put(lost_key(2), "killed");
  EXPECT_THAT(agree(store, {1, {1, 2}}, {1}), ElementsAre(ElementsAre(1)));
}

TEST(Members, WaitsForTheNewsOfALoss) {
  MemoryStore store;
  std::thread news([&] {
    store.get("members/1/here/1", milliseconds(5000));
    store.put(lost_key(0), "killed");
  });
  EXPECT_THAT(agree(store, all_members(2), {1}), ElementsAre(ElementsAre(1)));
  news.join();
}

TEST(Members, WhoHasFinishedIsNotWaitedFor) {
  MemoryStore store;
  store.put(lost_key(1), "killed");
  leave_members(store, 0);
  EXPECT_THAT(agree(store, all_members(3), {2}), ElementsAre(ElementsAre(2)));
}

TEST(Members, WhoDoesNotComeIsTakenForLostAndToldSo) {
  MemoryStore store;
  EXPECT_THAT(agree(store, all_members(3), {0, 2}, milliseconds(60)), testing::Each(ElementsAre(0, 2)));
  try {
    agree_on_members(store, 1, all_members(3), milliseconds(60));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
  }
}

}  // namespace
}  // namespace starling
