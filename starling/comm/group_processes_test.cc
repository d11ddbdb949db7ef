// Tests groups whose ranks are processes: the results, the bytes, and what the other ranks learn when one
// rank is killed or stopped. comm_test runs them over shared memory and TCP (group_ways_test.cc), ucx_test
// over UCX.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/testing/counted_bytes.h"
#include "starling/testing/group_processes.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr milliseconds kSaidWithin{30'000};

TEST_P(GroupProcesses, CollectivesAndMessagesGiveTheNaiveResult) {
  for (int p = 2; p <= 4; ++p) {
    ForkedJob job = this->job();
    job.size = p;
    run(job, [](Group& group) {
      for (const size_t count : {1, 10, 5'000, thorough() ? 300'001 : 100'001, 1'000'000})
        if (thorough() || count <= 5'000 || (group.size() == 3 && count < 1'000'000))
          check_collectives(group, count);
      check_messages(group);
      for (int i = 0; i < 5; ++i) check_started(group);
    });
  }
}

// Makes groups for the axes of a device mesh beside the group of all ranks. Each sums what its own ranks
// have.
TEST_P(GroupProcesses, SubsetsOfTheRanksMakeGroupsOfTheirOwn) {
  ForkedJob job = this->job();
  job.size = 6;  // two replicas of three stages
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    const auto world = job.join(rank, store);
    const int stage = rank % 3, first = rank - stage;
    const std::vector<int> replicas = {stage, stage + 3}, stages = {first, first + 1, first + 2};
    for (const auto& [axis, members] : {std::pair{"replica", replicas}, std::pair{"stage", stages}}) {
      const auto group = make_group(store, subset_of(job.setup_of(rank), axis, members));
      if (group->size() != static_cast<int>(members.size()) || members[group->rank()] != rank ||
          group->job_rank(group->rank()) != rank)
        throw CommError("the subset has other ranks");
      double sum = rank, want = 0;
      for (const int member : members) want += member;
      all_reduce(*group, &sum, 1, DataType::kFp64, ReduceOp::kSum);
      if (sum != want) throw CommError(std::string("the sum over the axis is wrong: ") + axis);
      barrier(*world);
    }
  });
  EXPECT_NO_THROW(ranks.wait_all());
}

// Sends a signal to `victim` while all ranks reduce, and expects the other ranks to name it. Returns their
// messages.
std::vector<std::string> expect_fault(const ForkedJob& job, int victim, int signal, milliseconds within,
                                      const char* fault) {
  ForkedRanks ranks(job.size,
                    [&](int rank, Store& store) { run_until_fault(*job.join(rank, store), store); });
  for (int r = 0; r < job.size; ++r) ranks.store().get(rank_key("ready", r), kSaidWithin);
  ranks.signal(victim, signal);
  const std::string rank = std::to_string(victim);
  std::vector<std::string> all;
  for (int r = 0; r < job.size; ++r) {
    if (r == victim) continue;
    const std::string said = ranks.store().get(rank_key("fault", r), within);
    EXPECT_THAT(said, StartsWith(fault + (" " + rank) + " "));
    EXPECT_THAT(said, HasSubstr("rank " + rank + " (node-a)"));
    EXPECT_EQ(ranks.wait(r), 0);
    all.push_back(said);
  }
  return all;
}

TEST_P(GroupProcesses, AKilledRankIsNamedToTheOthersWithinFiveSeconds) {
  expect_fault(job(), 1, SIGKILL, milliseconds(5'000), "comm");
}

// UCX's cma transport is covered, too. It reads the stopped rank's memory and tells no rank that it has done
// so.
TEST_P(GroupProcesses, AStoppedRankIsNamedWhenTheTimeEnds) {
  ForkedJob job = this->job();
  job.timeout = milliseconds(3'000);
  EXPECT_THAT(expect_fault(job, 2, SIGSTOP, kSaidWithin, "timeout"),
              testing::Each(HasSubstr("all-reduce #")));
}

TEST_P(GroupProcesses, AMismatchReachesAllRanks) {
  for (const size_t count : {1'000, 10'000}) {
    const ForkedJob job = this->job();
    ForkedRanks ranks(job.size, [&](int rank, Store& store) {
      const auto group = job.join(rank, store);
      std::vector<float> data(count);
      try {
        all_reduce(*group, data.data(), rank == 2 ? count * 9 / 10 : count, DataType::kFp32, ReduceOp::kSum);
      } catch (const CommError& error) {
        store.put(rank_key("fault", rank), error.what());
      }
    });
    for (int r = 0; r < job.size; ++r) {
      const std::string fault = ranks.store().get(rank_key("fault", r), kSaidWithin);
      EXPECT_THAT(fault, HasSubstr("collectives differ"));
      EXPECT_THAT(fault, HasSubstr(std::to_string(4 * count) + " bytes"));
      EXPECT_THAT(fault, HasSubstr("rank 2 (node-a) in all-reduce #1 (sum of " +
                                   std::to_string(4 * count * 9 / 10) + " bytes fp32)"));
    }
  }
}

TEST_P(ConnectedProcesses, SecuredDataGivesTheNaiveResult) {
  for (const DataSecurity security : {DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    ForkedJob job = this->job();
    job.identity.security = security;
    run(job, [](Group& group) {
      for (const size_t count : {1, 3'000, 5'000, 100'000, thorough() ? 300'000 : 10})
        check_collectives(group, count);
      check_messages(group);
    });
  }
}

TEST_P(ConnectedProcesses, DifferentSettingsAreNamedBeforeDataFlows) {
  ForkedJob job = this->job();
  job.size = 2;
  job.timeout = milliseconds(5'000);
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    ForkedJob mine = job;
    mine.identity.security = rank == 0 ? DataSecurity::kNone : DataSecurity::kEncrypt;
    mine.join(rank, store);
  });
  EXPECT_THAT(ranks.store().get(rank_key("error", 1), kSaidWithin),
              HasSubstr("the peer uses --net-security none and this process uses encrypt"));
  EXPECT_THAT(ranks.store().get(rank_key("error", 0), kSaidWithin),
              HasSubstr("the peer uses --net-security encrypt and this process uses none"));
}

TEST_P(ConnectedProcesses, AWrongKeyIsRefused) {
  ForkedJob job = this->job();
  job.size = 2;
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    ForkedJob mine = job;
    if (rank == 1) mine.identity.key = make_job_key();
    mine.join(rank, store);
  });
  EXPECT_THAT(ranks.store().get(rank_key("error", 1), kSaidWithin), HasSubstr("wrong job key"));
  EXPECT_EQ(ranks.wait(1), 1);
}

// The formulas are those of docs/reference/collectives.md. The seals of encrypted messages do not count.
TEST_P(ConnectedProcesses, CountedBytesAreThoseOfTheFormulas) {
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
    for (int p = 2; p <= 8; ++p) {
      ForkedJob job = this->job();
      job.size = p;
      job.algorithm = algorithm;
      if (p == 3) job.identity.security = DataSecurity::kEncrypt;
      run(job, [](Group& group) {
        for (const size_t count : {0, 1, 1'000, 30'011}) check_counted_bytes(group, count);
      });
    }
  }
}

}  // namespace
}  // namespace starling
