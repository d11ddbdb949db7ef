// Tests agreements of ranks that are processes. One rank is stopped or killed, or the network is cut. The
// tests check which ranks continue, and what lost generations leave in the store.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/membership.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"
#include "starling/testing/forked_ranks.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSoonEnough{60'000};  // for each wait of a test

// Reduces in one group after another, until an agreement fails or `until` ranks are left. After each loss the
// rank puts its generation under "continued/<rank>".
void continue_after_losses(int rank, StoreClient& store, int ranks, size_t until,
                           const MembershipRules& rules) {
  store.announce(rank);
  store.put("here/" + std::to_string(rank), "");
  store.gather("here/", ranks, kSoonEnough);
  Membership members = full_membership(ranks);
  for (;;) {
    GroupSetup setup;
    setup.size = static_cast<int>(members.ranks.size());
    setup.rank =
        static_cast<int>(std::find(members.ranks.begin(), members.ranks.end(), rank) - members.ranks.begin());
    setup.generation = members.generation;
    setup.world_ranks = members.ranks;
    setup.options.timeout = milliseconds(3'000);
    try {
      const auto group = setup.size == 1 ? make_single_group() : make_group(store, setup);
      barrier(*group);
      if (members.generation > 0) forget_generation(store, members.generation - 1);
      barrier(*group);
      store.put("continued/" + std::to_string(rank), std::to_string(members.generation));
      if (members.ranks.size() <= until) break;
      std::vector<float> data(1'000, 1.0f);
      for (;;) {
        all_reduce(*group, data.data(), data.size(), DataType::kFp32, ReduceOp::kMax);
        if (data[0] != 1.0f) throw Error(ErrorCode::kInternal, "the maximum is wrong");
      }
    } catch (const CommError&) {
      members = agree_on_membership(store, rank, members, rules);
    }
  }
  store.goodbye();
}

// Waits until `rank` has put at least this generation.
void await_generation(Store& store, int rank, int64_t generation) {
  for (int i = 0; i < 6'000; ++i) {
    const auto reached = store.try_get("continued/" + std::to_string(rank));
    if (reached && std::stoll(*reached) >= generation) return;
    std::this_thread::sleep_for(milliseconds(10));
  }
  ADD_FAILURE() << "rank " << rank << " did not reach generation " << generation;
}

StoreClient& client(Store& store) {
  return dynamic_cast<StoreClient&>(store);
}

TEST(MembershipProcesses, TheOthersContinueWithoutAStoppedRank0) {
  const MembershipRules rules{.patience = milliseconds(3'000)};
  ForkedRanks ranks(3,
                    [&](int rank, Store& store) { continue_after_losses(rank, client(store), 3, 2, rules); });
  for (int r = 0; r < 3; ++r) await_generation(ranks.store(), r, 0);
  ranks.signal(0, SIGSTOP);
  for (const int r : {1, 2})
    EXPECT_EQ(ranks.wait(r), 0) << ranks.store().try_get("error/" + std::to_string(r)).value_or("");
  EXPECT_EQ(ranks.store().get("membership/1/list", kSoonEnough), "1 2");
  ranks.signal(0, SIGCONT);
  EXPECT_EQ(ranks.wait(0), 1);
  EXPECT_THAT(ranks.store().get("error/0", kSoonEnough), testing::HasSubstr("continued without it"));
}

// The test is the launcher: it ends the rank that it is asked to end.
TEST(MembershipProcesses, OneOfTwoRanksContinuesOnceTheLauncherHasEndedAStoppedOne) {
  ForkedRanks ranks(2, [&](int rank, Store& store) {
    MembershipRules rules{.patience = milliseconds(3'000), .eviction = kSoonEnough};
    rules.evict = [&](int stuck, const std::string&) { store.put("stuck", std::to_string(stuck)); };
    continue_after_losses(rank, client(store), 2, 1, rules);
  });
  for (int r = 0; r < 2; ++r) await_generation(ranks.store(), r, 0);
  ranks.signal(0, SIGSTOP);
  EXPECT_EQ(ranks.store().get("stuck", kSoonEnough), "0");
  ranks.signal(0, SIGKILL);
  EXPECT_EQ(ranks.wait(1), 0);
  EXPECT_EQ(ranks.store().get("membership/1/list", kSoonEnough), "1");
}

TEST(MembershipProcesses, AllRanksButOneMayBeKilled) {
  const MembershipRules rules{.patience = kSoonEnough};
  ForkedRanks ranks(4,
                    [&](int rank, Store& store) { continue_after_losses(rank, client(store), 4, 1, rules); });
  for (int r = 0; r < 4; ++r) await_generation(ranks.store(), r, 0);
  for (int loss = 0; loss < 3; ++loss) {
    ranks.signal(loss, SIGKILL);
    for (int r = loss + 1; r < 4; ++r) await_generation(ranks.store(), r, loss + 1);
  }
  EXPECT_EQ(ranks.wait(3), 0);
}

size_t open_descriptors() {
  const auto folder = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(folder), end(folder)));
}

// Ranks 0 and 1 live through all generations. In each of them another process is rank 2, and is killed.
void lose_in_each_generation(int process, Store& store, int losses) {
  const auto join = [&](int generation) {
    GroupSetup setup;
    setup.rank = std::min(process, 2);
    setup.size = 3;
    setup.generation = generation;
    setup.world_ranks = {0, 1, 2 + generation};
    return make_group(store, setup);
  };
  if (process >= 2) {
    client(store).announce(process);
    store.get("begin/" + std::to_string(process - 2), 10 * kSoonEnough);  // all generations before its own
    const auto group = join(process - 2);
    group->allocate_window(1 << 16);
    for (;;) barrier(*group);
  }
  for (int g = 0; g < losses; ++g) {
    {
      const auto group = join(g);
      const auto window = group->allocate_window(1 << 16);
      barrier(*group);
      store.put("lose/" + std::to_string(g), "now");
      try {
        for (;;) barrier(*group);
      } catch (const CommError&) {
      }
    }
    store.put(fmt::format("left/{}/{}", g, process), "");
    store.get(fmt::format("left/{}/{}", g, 1 - process), kSoonEnough);
    forget_generation(store, g);
  }
}

TEST(MembershipProcesses, FiftyLossesLeaveNoDescriptorsAndFewKeysInTheStore) {
  constexpr int kLosses = 50;
  // The store holds for each loss: lost/R, dead/R, and the begin, the lose and two left of the test.
  // lost/first is there once.
  constexpr size_t kKeysPerLoss = 6;
  ForkedRanks ranks(2 + kLosses,
                    [&](int process, Store& store) { lose_in_each_generation(process, store, kLosses); });
  const auto lose = [&](int generation) {
    const std::string g = std::to_string(generation);
    ranks.store().put("begin/" + g, "now");
    ranks.store().get("lose/" + g, kSoonEnough);
    ranks.signal(2 + generation, SIGKILL);
    ranks.wait(2 + generation);
    for (const int r : {0, 1}) ranks.store().get(fmt::format("left/{}/{}", g, r), kSoonEnough);
  };
  lose(0);
  const size_t descriptors = open_descriptors(), keys = ranks.keys();
  for (int g = 1; g < kLosses; ++g) lose(g);
  for (const int r : {0, 1}) EXPECT_EQ(ranks.wait(r), 0);
  // Each loss ends connections, so there are fewer descriptors than at the beginning.
  EXPECT_LT(open_descriptors(), descriptors);
  EXPECT_LE(ranks.keys(), keys + (kLosses - 1) * kKeysPerLoss);
}

}  // namespace
}  // namespace starling
