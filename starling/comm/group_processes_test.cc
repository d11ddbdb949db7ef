// Groups whose ranks are processes: results, and what the others learn when one is killed or stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/collective_test_values.h"
#include "starling/comm/tcp_mesh.h"
#include "starling/spec/mesh.h"
#include "starling/testing/forked_ranks.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

// The job key of the connections between ranks; the children inherit it.
struct Job {
  JobIdentity identity{make_job_key(), "comm-test"};
  int size = 3;
  bool shared_memory = true;
  milliseconds timeout{20'000};

  GroupSetup setup_of(int rank) const {
    GroupSetup setup;
    setup.rank = rank;
    setup.size = size;
    setup.options.timeout = timeout;
    setup.options.shared_memory = shared_memory;
    setup.host_name = "node-a";
    setup.connect = tcp_mesh("127.0.0.1", identity);
    return setup;
  }
  std::unique_ptr<Group> join(int rank, Store& store) const { return make_group(store, setup_of(rank)); }
};

std::string name(const char* what, int rank) {
  return std::string(what) + "/" + std::to_string(rank);
}

// Runs collectives until one fails; puts the message, the culprit and the kind of the error.
void run_until_fault(Group& group, Store& store) {
  std::vector<float> data(100'000, 1.0f);
  try {
    for (int i = 0;; ++i) {
      if (i == 3) store.put(name("ready", group.rank()), "yes");
      group.all_reduce(data.data(), data.size(), DataType::kFp32, ReduceOp::kMax);
    }
  } catch (const TimeoutError& error) {
    store.put(name("fault", group.rank()), "timeout " + std::to_string(error.peer()) + " " + error.what());
  } catch (const CommError& error) {
    store.put(name("fault", group.rank()), "comm " + std::to_string(error.peer()) + " " + error.what());
  }
}

class ProcessesTest : public testing::TestWithParam<bool> {
 protected:
  Job job() const {
    Job out;
    out.shared_memory = GetParam();
    return out;
  }
};

TEST_P(ProcessesTest, CollectivesGiveTheNaiveResult) {
  const Job job = this->job();
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    const auto group = job.join(rank, store);
    const auto window = group->allocate_window(4 << 20);
    for (const size_t count : {size_t{10}, size_t{5'000}, size_t{1'000'000}}) {
      auto data = test_tensor(DataType::kFp32, count, rank, 1);
      std::byte* shared = window->region(group->local_rank());
      std::copy(data.begin(), data.end(), shared);
      const auto want = reduced_tensor(DataType::kFp32, count, job.size, ReduceOp::kSum, 1);
      group->all_reduce(data.data(), count, DataType::kFp32, ReduceOp::kSum);
      group->all_reduce(shared, count, DataType::kFp32, ReduceOp::kSum);
      const bool equal = data == want && std::equal(want.begin(), want.end(), shared);
      if (!equal) throw CommError("the sum is wrong");
      group->barrier();
    }
  });
  for (int r = 0; r < job.size; ++r)
    EXPECT_EQ(ranks.wait(r), 0) << ranks.store().try_get(name("error", r)).value_or("");
}

// The groups of a mesh's axes, beside that of all: each sums what its own ranks have.
TEST_P(ProcessesTest, SubsetsOfTheRanksMakeGroupsOfTheirOwn) {
  Job job = this->job();
  const MeshSpec mesh{2, 3, 1};
  job.size = static_cast<int>(mesh.ranks());
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    const auto world = job.join(rank, store);
    const MeshPlace place = place_of(mesh, rank);
    for (const auto& [axis, members] :
         {std::pair{"replica", place.replica_ranks}, std::pair{"stage", place.stage_ranks}}) {
      const auto group = make_group(store, subset_of(job.setup_of(rank), axis, members));
      if (group->size() != static_cast<int>(members.size()) || members[group->rank()] != rank)
        throw CommError("the subset has other ranks");
      double sum = rank, want = 0;
      for (const int member : members) want += member;
      group->all_reduce(&sum, 1, DataType::kFp64, ReduceOp::kSum);
      if (sum != want) throw CommError(std::string("the sum over the axis is wrong: ") + axis);
      world->barrier();
    }
  });
  for (int r = 0; r < job.size; ++r)
    EXPECT_EQ(ranks.wait(r), 0) << ranks.store().try_get(name("error", r)).value_or("");
  EXPECT_THROW(subset_of(job.setup_of(2), "stage", {0, 1}), CommError);
}

TEST_P(ProcessesTest, AKilledRankIsNamedToTheOthersWithinFiveSeconds) {
  const Job job = this->job();
  ForkedRanks ranks(job.size,
                    [&](int rank, Store& store) { run_until_fault(*job.join(rank, store), store); });
  for (int r = 0; r < job.size; ++r) ranks.store().get(name("ready", r), milliseconds(30'000));
  ranks.signal(1, SIGKILL);
  for (const int r : {0, 2}) {
    const std::string fault = ranks.store().get(name("fault", r), milliseconds(5'000));
    EXPECT_THAT(fault, StartsWith("comm 1 "));
    EXPECT_THAT(fault, HasSubstr("rank 1 (node-a)"));
    EXPECT_EQ(ranks.wait(r), 0);
  }
}

TEST_P(ProcessesTest, AStoppedRankIsNamedWhenTheTimeEnds) {
  Job job = this->job();
  job.timeout = milliseconds(1'000);
  ForkedRanks ranks(job.size,
                    [&](int rank, Store& store) { run_until_fault(*job.join(rank, store), store); });
  for (int r = 0; r < job.size; ++r) ranks.store().get(name("ready", r), milliseconds(30'000));
  ranks.signal(2, SIGSTOP);
  for (const int r : {0, 1}) {
    const std::string fault = ranks.store().get(name("fault", r), milliseconds(10'000));
    EXPECT_THAT(fault, StartsWith("timeout 2 "));
    EXPECT_THAT(fault, HasSubstr("rank 2 (node-a)"));
    EXPECT_THAT(fault, HasSubstr("all-reduce #"));
  }
}

TEST_P(ProcessesTest, AMismatchReachesAllRanks) {
  const Job job = this->job();
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    const auto group = job.join(rank, store);
    std::vector<float> data(1000);
    try {
      group->all_reduce(data.data(), rank == 2 ? 900 : 1000, DataType::kFp32, ReduceOp::kSum);
    } catch (const CommError& error) {
      store.put(name("fault", rank), error.what());
    }
  });
  for (int r = 0; r < job.size; ++r) {
    const std::string fault = ranks.store().get(name("fault", r), milliseconds(10'000));
    EXPECT_THAT(fault, HasSubstr("collectives differ"));
    EXPECT_THAT(fault, HasSubstr("4000 bytes"));
    EXPECT_THAT(fault, HasSubstr("rank 2 (node-a) in all-reduce #1 (sum of 3600 bytes fp32)"));
  }
}

// What crosses the sockets is authenticated or encrypted; the results are those of ranks that share memory.
TEST(SecuredProcesses, GiveTheNaiveResult) {
  for (const DataSecurity security : {DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    Job job;
    job.shared_memory = false;
    job.identity.security = security;
    ForkedRanks ranks(job.size, [&](int rank, Store& store) {
      const auto group = job.join(rank, store);
      for (const size_t count : {size_t{1}, size_t{5'000}, size_t{300'000}}) {
        auto data = test_tensor(DataType::kFp32, count, rank, 1);
        group->all_reduce(data.data(), count, DataType::kFp32, ReduceOp::kSum);
        if (data != reduced_tensor(DataType::kFp32, count, job.size, ReduceOp::kSum, 1))
          throw CommError("the sum is wrong");
      }
      std::vector<std::byte> letter(200'000, std::byte(rank)), got(letter.size());
      group->send(letter.data(), letter.size(), (rank + 1) % job.size, 4);
      group->recv(got.data(), got.size(), (rank + job.size - 1) % job.size, 4);
      if (got.back() != std::byte((rank + job.size - 1) % job.size)) throw CommError("the letter is wrong");
      group->barrier();
    });
    for (int r = 0; r < job.size; ++r)
      EXPECT_EQ(ranks.wait(r), 0) << ranks.store().try_get(name("error", r)).value_or("");
  }
}

TEST(SecuredProcesses, DifferentSettingsAreNamedBeforeDataFlows) {
  Job job;
  job.size = 2;
  job.shared_memory = false;
  job.timeout = milliseconds(2'000);
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    Job mine = job;
    mine.identity.security = rank == 0 ? DataSecurity::kNone : DataSecurity::kEncrypt;
    mine.join(rank, store);
  });
  EXPECT_THAT(ranks.store().get(name("error", 1), milliseconds(20'000)),
              HasSubstr("the peer has --net-security none, we have encrypt"));
  EXPECT_THAT(ranks.store().get(name("error", 0), milliseconds(20'000)),
              HasSubstr("the peer has --net-security encrypt, we have none"));
}

INSTANTIATE_TEST_SUITE_P(Transports, ProcessesTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "SharedMemory" : "Tcp"; });

}  // namespace
}  // namespace starling
