#include "starling/comm/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "starling/base/error.h"
#include "starling/net/memory/memory_store.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Makes each rank of `present` agree in a thread of its own. A rank that is known to be lost or finished is
// not waited for: the default patience is longer than a test may take.
std::vector<std::vector<int>> agree(Store& store, const Membership& before, const std::vector<int>& present,
                                    const MembershipRules& rules = {.patience = std::chrono::hours(1)}) {
  std::vector<std::vector<int>> found(present.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < present.size(); ++i) {
    threads.emplace_back([&, i] {
      const Membership next = agree_on_membership(store, present[i], before, rules);
      EXPECT_EQ(next.generation, before.generation + 1);
      found[i] = next.ranks;
    });
  }
  for (std::thread& t : threads) t.join();
  return found;
}

// The rules of a rank that no other rank joins.
const MembershipRules kSoon{.patience = milliseconds(60)};
// The rules of ranks that wait for each other. The ranks are threads of a machine that may be busy.
const MembershipRules kPatient{.patience = milliseconds(2000)};

// Expects that the other ranks continued without `rank`, and that `rank` gets an error that says so.
void expect_excluded(Store& store, int rank, const Membership& before) {
  try {
    agree_on_membership(store, rank, before, kSoon);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
  }
}

// Returns the message with which a rank that is present alone is refused.
std::string refusal(Store& store, const Membership& before, int rank, const MembershipRules& rules) {
  try {
    agree_on_membership(store, rank, before, rules);
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

// StoreOver passes every call to another store.
class StoreOver : public Store {
 public:
  explicit StoreOver(Store& store) : store_(store) {}
  void put(const std::string& key, const std::string& value) override { store_.put(key, value); }
  std::string put_if_absent(const std::string& key, const std::string& value) override {
    return store_.put_if_absent(key, value);
  }
  std::string get(const std::string& key, Milliseconds timeout) override { return store_.get(key, timeout); }
  std::optional<std::string> try_get(const std::string& key) override { return store_.try_get(key); }
  std::vector<std::string> gather(const std::string& prefix, int count, Milliseconds timeout) override {
    return store_.gather(prefix, count, timeout);
  }
  std::map<std::string, std::string> list(const std::string& prefix) override { return store_.list(prefix); }
  int64_t add(const std::string& key, int64_t delta) override { return store_.add(key, delta); }
  void put_fd(const std::string& key, int fd, int readers) override { store_.put_fd(key, fd, readers); }
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override {
    return store_.get_fd(key, timeout);
  }
  void erase(const std::string& prefix) override { store_.erase(prefix); }
  std::string address() const override { return store_.address(); }

 protected:
  Store& store() { return store_; }

 private:
  Store& store_;
};

TEST(Membership, ThoseThatAreLeftAgree) {
  MemoryStore store;
  store.put(lost_key(2), "killed");
  EXPECT_THAT(agree(store, full_membership(4), {0, 1, 3}), testing::Each(ElementsAre(0, 1, 3)));
}

TEST(Membership, TheLowestThatIsLeftWritesTheList) {
  MemoryStore store;
  store.put(lost_key(0), "killed");
  EXPECT_THAT(agree(store, full_membership(3), {1, 2}), testing::Each(ElementsAre(1, 2)));
  store.put(lost_key(2), "killed");
  EXPECT_THAT(agree(store, {1, {1, 2}}, {1}), ElementsAre(ElementsAre(1)));
}

TEST(Membership, WaitsForTheNewsOfALoss) {
  MemoryStore store;
  std::thread news([&] {
    store.get("membership/1/here/1", milliseconds(5000));
    store.put(lost_key(0), "killed");
  });
  EXPECT_THAT(agree(store, full_membership(2), {1}), ElementsAre(ElementsAre(1)));
  news.join();
}

TEST(Membership, WhoHasFinishedIsNotWaitedFor) {
  MemoryStore store;
  store.put(lost_key(1), "killed");
  leave_membership(store, 0);
  EXPECT_THAT(agree(store, full_membership(3), {2}), ElementsAre(ElementsAre(2)));
}

TEST(Membership, WhoDoesNotComeIsTakenForLostAndToldSo) {
  MemoryStore store;
  EXPECT_THAT(agree(store, full_membership(3), {0, 2}, kPatient), testing::Each(ElementsAre(0, 2)));
  expect_excluded(store, 1, full_membership(3));
}

TEST(Membership, TheLowestThatIsPresentWritesTheListIfALowerRankIsStuck) {
  MemoryStore store;
  EXPECT_THAT(agree(store, full_membership(3), {1, 2}, kPatient), testing::Each(ElementsAre(1, 2)));
  expect_excluded(store, 0, full_membership(3));
}

TEST(Membership, TheListThatWasPutFirstCounts) {
  MemoryStore store;
  store.put("membership/1/list", "0 1");
  EXPECT_THAT(agree(store, full_membership(3), {0, 1}), testing::Each(ElementsAre(0, 1)));
  expect_excluded(store, 2, full_membership(3));
  EXPECT_EQ(store.get("membership/1/list", milliseconds(0)), "0 1");
}

// Rank 1 counts rank 2 as missing and is about to put a list. Before it does, the list of another rank is
// there.
TEST(Membership, ARankThatProposesLateMarksNoRankLost) {
  class SlowStore final : public StoreOver {
   public:
    using StoreOver::StoreOver;
    std::string put_if_absent(const std::string& key, const std::string& value) override {
      if (key == "membership/1/list") store().put(key, "0 1 2");
      return StoreOver::put_if_absent(key, value);
    }
  };
  MemoryStore store;
  SlowStore slow(store);
  EXPECT_THAT(agree(slow, full_membership(3), {0, 1}, kSoon), testing::Each(ElementsAre(0, 1, 2)));
  EXPECT_FALSE(store.try_get(lost_key(2)));
}

// The test would take an hour if the ranks waited for the suspect as long as for any other rank.
TEST(Membership, ASuspectIsNotWaitedForAgain) {
  constexpr std::chrono::hours kLong(1);
  MemoryStore store;
  EXPECT_THAT(agree(store, full_membership(3), {0, 2}, {.patience = kLong, .suspect = 1}),
              testing::Each(ElementsAre(0, 2)));
}

TEST(Membership, FewerThanHalfOfTheRanksAreRefused) {
  MemoryStore store;
  EXPECT_THAT(refusal(store, full_membership(4), 3, kSoon),
              AllOf(HasSubstr("of 4 ranks, 1 are present (rank 3)"), HasSubstr("--quorum any")));
}

TEST(Membership, HalfOfTheRanksIsEnoughBecauseTheyReachTheStore) {
  MemoryStore store;
  EXPECT_THAT(agree(store, full_membership(4), {2, 3}, kPatient), testing::Each(ElementsAre(2, 3)));
}

TEST(Membership, WithQuorumAnyOneRankContinues) {
  MemoryStore store;
  EXPECT_THAT(agree(store, full_membership(4), {3}, {.patience = milliseconds(60), .majority = false}),
              ElementsAre(ElementsAre(3)));
}

TEST(Membership, RanksWhoseDeathIsKnownDoNotCount) {
  MemoryStore store;
  for (const int r : {0, 1}) {
    store.put(lost_key(r), "killed");
    store.put(dead_key(r), "killed");
  }
  store.put(lost_key(2), "its host does not answer");
  EXPECT_THAT(agree(store, full_membership(4), {3}, kSoon), ElementsAre(ElementsAre(3)));
  MemoryStore other;
  for (const int r : {0, 1, 2}) other.put(lost_key(r), "its host does not answer");
  EXPECT_THAT(refusal(other, full_membership(4), 3, kSoon), HasSubstr("Rank 0, 1, 2 may still"));
}

TEST(Membership, ARankThatDoesNotComeIsEndedAndThenDoesNotCount) {
  MemoryStore store;
  MembershipRules rules = kSoon;
  std::vector<int> evicted;
  rules.evict = [&](int rank, const std::string& why) {
    EXPECT_THAT(why, HasSubstr("60 ms"));
    evicted.push_back(rank);
    store.put(dead_key(rank), "killed");
    store.put(lost_key(rank), "killed");
  };
  EXPECT_THAT(agree(store, full_membership(3), {2}, rules), ElementsAre(ElementsAre(2)));
  EXPECT_THAT(evicted, ElementsAre(0, 1));
}

}  // namespace
}  // namespace starling
