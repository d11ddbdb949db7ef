#include "starling/train/store_gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "starling/base/error.h"
#include "starling/net/memory/memory_store.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

struct Ranks {
  MemoryStore store;
  int led = 0;
  StoreGather make(int rank, milliseconds timeout = milliseconds(5000)) {
    return StoreGather(store, rank, 3, timeout, [this] { ++led; });
  }
};

TEST(StoreGather, ListsNumbersByRankWithoutThoseOfTheLost) {
  Ranks ranks;
  ranks.store.put(lost_key(2), "killed");
  StoreGather first = ranks.make(0), second = ranks.make(1);
  EXPECT_FALSE(second.leads());
  second.gather("loss", {0.1, -1e300});
  EXPECT_THAT(first.gather("loss", {2}), ElementsAre(ElementsAre(2), ElementsAre(0.1, -1e300), IsEmpty()));
  EXPECT_EQ(ranks.led, 0);
}

TEST(StoreGather, WhatALostRankPutBeforeCounts) {
  Ranks ranks;
  StoreGather first = ranks.make(0), second = ranks.make(1), third = ranks.make(2);
  second.gather("loss", {3});
  third.gather("loss", {4});
  ranks.store.put(lost_key(1), "killed");
  EXPECT_THAT(first.gather("loss", {2}), ElementsAre(ElementsAre(2), ElementsAre(3), ElementsAre(4)));
}

TEST(StoreGather, TheLowestRankThatIsLeftLeadsAndTheOthersWaitForItsReport) {
  Ranks ranks;
  StoreGather second = ranks.make(1), third = ranks.make(2);
  ranks.store.put(lost_key(0), "killed");
  std::thread waits([&] { third.gather_last({5}); });
  EXPECT_THAT(second.gather_last({4}), ElementsAre(IsEmpty(), ElementsAre(4), ElementsAre(5)));
  EXPECT_TRUE(second.leads());
  EXPECT_EQ(ranks.led, 1);
  second.reported();
  waits.join();
  EXPECT_FALSE(third.leads());
}

TEST(StoreGather, ALeaderThatIsLostBeforeItReportsIsFollowed) {
  Ranks ranks;
  StoreGather second = ranks.make(1), third = ranks.make(2);
  second.gather("loss", {1});
  std::thread dies([&] {
    ranks.store.put(lost_key(0), "killed");
    ranks.store.put(lost_key(1), "killed");
  });
  EXPECT_THAT(third.gather_last({5}), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(5)));
  dies.join();
}

TEST(StoreGather, GatherAllIsCompleteOnEveryRank) {
  Ranks ranks;
  StoreGather first = ranks.make(0), second = ranks.make(1), third = ranks.make(2);
  std::vector<std::vector<double>> of_first, of_second;
  std::thread one([&] { of_first = first.gather_all("requests 7", {1}); });
  std::thread two([&] { of_second = second.gather_all("requests 7", {2}); });
  EXPECT_THAT(third.gather_all("requests 7", {4}),
              ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(4)));
  one.join();
  two.join();
  EXPECT_EQ(of_first, of_second);
  EXPECT_THAT(of_first, ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(4)));
}

TEST(StoreGather, ARankThatLivesButDoesNotComeIsNamed) {
  Ranks ranks;
  StoreGather first = ranks.make(0, milliseconds(60));
  try {
    first.gather("loss", {1});
    FAIL();
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 did not send its part of loss"));
  }
}

}  // namespace
}  // namespace starling
