// Groups over UCX whose ranks are processes, by its TCP alone and with the rest of long messages copied from process to process (cma, as
// RDMA would): results, bytes, and what the others learn when one is killed or stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/shared_object.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/collective_test_values.h"
#include "starling/comm/ucx_mesh.h"
#include "starling/net/ucx/plugin.h"
#include "starling/testing/error_of.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/kill_round.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

std::string why_not() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto plugin = program.parent_path().parent_path() / "lib/starling/libstarling_ucx.so";
  return std::filesystem::exists(plugin) ? "" : "UCX is not installed here: its engine was not built";
}

struct Job {
  JobIdentity identity{make_job_key(), "ucx-test"};
  int size = 3;
  milliseconds timeout{20'000};
  Algorithm algorithm = Algorithm::kAuto;

  std::unique_ptr<Group> join(int rank, Store& store) const {
    GroupSetup setup;
    setup.rank = rank;
    setup.size = size;
    setup.options.timeout = timeout;
    setup.options.shared_memory = false;
    setup.options.algorithm = algorithm;
    setup.host_name = "node-a";
    setup.connect = ucx_mesh(load_ucx("lo"), "127.0.0.1", identity);
    return make_group(store, setup);
  }
};

std::string name(const char* what, int rank) {
  return std::string(what) + "/" + std::to_string(rank);
}

void expect(bool right, const std::string& what) {
  if (!right) throw CommError(what + " is wrong");
}

void check_collectives(Group& group, size_t count) {
  const int p = group.size(), rank = group.rank();
  auto data = test_tensor(DataType::kFp32, count, rank, 1);
  const auto own = data;
  group.all_reduce(data.data(), count, DataType::kFp32, ReduceOp::kSum);
  expect(data == reduced_tensor(DataType::kFp32, count, p, ReduceOp::kSum, 1), "all-reduce");

  const auto wide = test_tensor(DataType::kFp32, count * p, rank, 2);
  std::vector<std::byte> part(count * 4);
  group.reduce_scatter(wide.data(), part.data(), count, DataType::kFp32, ReduceOp::kMax);
  expect(part == reduced_tensor(DataType::kFp32, count, p, ReduceOp::kMax, 2, count * rank),
         "reduce-scatter");

  std::vector<std::byte> all(p * count * 4), want;
  group.all_gather(own.data(), all.data(), count, DataType::kFp32);
  for (int r = 0; r < p; ++r) {
    const auto piece = test_tensor(DataType::kFp32, count, r, 1);
    want.insert(want.end(), piece.begin(), piece.end());
  }
  expect(all == want, "all-gather");

  std::vector<std::byte> crossed(wide.size());
  const std::vector<size_t> splits(p, count);
  group.all_to_all(wide.data(), splits, crossed.data(), splits, DataType::kFp32);
  for (int r = 0; r < p; ++r) {
    const auto theirs = test_tensor(DataType::kFp32, count * p, r, 2);
    expect(std::equal(crossed.begin() + r * count * 4, crossed.begin() + (r + 1) * count * 4,
                      theirs.begin() + rank * count * 4),
           "all-to-all");
  }
  data = own;
  group.broadcast(data.data(), count, DataType::kFp32, p - 1);
  expect(data == test_tensor(DataType::kFp32, count, p - 1, 1), "broadcast");
  group.barrier();
}

// Around a ring, all sending before they receive.
void check_mail(Group& group) {
  const int p = group.size(), next = (group.rank() + 1) % p, before = (group.rank() + p - 1) % p;
  for (const size_t bytes : {size_t{0}, size_t{8192}, size_t{8193}, size_t{3'000'001}}) {
    const auto letter = test_tensor(DataType::kUint8, bytes, group.rank(), 3);
    std::vector<std::byte> got(bytes);
    group.send(letter.data(), bytes, next, 4);
    group.recv(got.data(), bytes, before, 4);
    expect(got == test_tensor(DataType::kUint8, bytes, before, 3), "a letter");
  }
}

void run_until_fault(Group& group, Store& store) {
  std::vector<float> data(200'000, 1.0f);
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

class UcxTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto reason = why_not(); !reason.empty()) GTEST_SKIP() << reason;
    ::setenv("UCX_TLS", GetParam(), 1);  // read by UCX in the ranks, which are forked later
  }
  void run(const Job& job, const std::function<void(Group&)>& body) {
    ForkedRanks ranks(job.size, [&](int rank, Store& store) { body(*job.join(rank, store)); });
    for (int r = 0; r < job.size; ++r)
      EXPECT_EQ(ranks.wait(r), 0) << ranks.store().try_get(name("error", r)).value_or("");
  }
};

TEST_P(UcxTest, CollectivesAndMailGiveTheNaiveResult) {
  for (int p = 2; p <= 4; ++p) {
    Job job;
    job.size = p;
    run(job, [](Group& group) {
      for (const size_t count : {size_t{1}, size_t{5'000}, size_t{300'001}}) check_collectives(group, count);
      check_mail(group);
    });
  }
}

TEST_P(UcxTest, SecuredDataGivesTheNaiveResult) {
  for (const DataSecurity security : {DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    Job job;
    job.identity.security = security;
    run(job, [](Group& group) {
      for (const size_t count : {size_t{1}, size_t{3'000}, size_t{100'000}}) check_collectives(group, count);
      check_mail(group);
    });
  }
}

TEST_P(UcxTest, BytesAreCountedWhereTheyEnterUcx) {
  Job job;
  job.algorithm = Algorithm::kRing;
  run(job, [](Group& group) {
    std::vector<float> data(300'000, 1.0f);
    group.barrier();
    const TrafficCount before = group.traffic();
    group.all_reduce(data.data(), data.size(), DataType::kFp32, ReduceOp::kSum);
    const TrafficCount after = group.traffic();
    const double formula = 2.0 * 2 / 3 * 4 * static_cast<double>(data.size());
    expect(std::abs((after.socket_sent - before.socket_sent) / formula - 1) < 0.001, "what was sent");
    expect(std::abs((after.socket_received - before.socket_received) / formula - 1) < 0.001, "what came");
  });
}

TEST_P(UcxTest, AKilledRankIsNamedToTheOthersWithinFiveSeconds) {
  const Job job;
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

// By cma alone: it reads the stopped rank's memory, and nobody tells that it has done so.
TEST(UcxStopped, AStoppedRankIsNamedWhenTheTimeEnds) {
  if (const auto reason = why_not(); !reason.empty()) GTEST_SKIP() << reason;
  ::setenv("UCX_TLS", "tcp,cma", 1);
  Job job;
  job.timeout = milliseconds(3'000);  // of joining too, on a busy machine
  ForkedRanks ranks(job.size,
                    [&](int rank, Store& store) { run_until_fault(*job.join(rank, store), store); });
  for (int r = 0; r < job.size; ++r) ranks.store().get(name("ready", r), milliseconds(30'000));
  ranks.signal(2, SIGSTOP);
  for (const int r : {0, 1}) {
    const std::string fault = ranks.store().get(name("fault", r), milliseconds(30'000));
    EXPECT_THAT(fault, StartsWith("timeout 2 "));
    EXPECT_THAT(fault, HasSubstr("rank 2 (node-a)"));
    EXPECT_EQ(ranks.wait(r), 0);
  }
}

TEST_P(UcxTest, AMismatchReachesAllRanks) {
  const Job job;
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    const auto group = job.join(rank, store);
    std::vector<float> data(10'000);
    try {
      group->all_reduce(data.data(), rank == 2 ? 9'000 : 10'000, DataType::kFp32, ReduceOp::kSum);
    } catch (const CommError& error) {
      store.put(name("fault", rank), error.what());
    }
  });
  for (int r = 0; r < job.size; ++r) {
    const std::string fault = ranks.store().get(name("fault", r), milliseconds(30'000));
    EXPECT_THAT(fault, HasSubstr("collectives differ"));
    EXPECT_THAT(fault, HasSubstr("rank 2 (node-a) in all-reduce #1 (sum of 36000 bytes fp32)"));
  }
}

TEST_P(UcxTest, TheRightRankIsNamedInEveryCollective) {
  uint64_t seed = 1;
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllToAll,
                                    CollectiveKind::kBroadcast, CollectiveKind::kSend}) {
    const KillOutcome outcome =
        play_kill_round({.kind = kind, .transport = KillTransport::kUcx, .ranks = 3, .seed = seed++});
    for (const std::string& problem : outcome.problems)
      ADD_FAILURE() << name_of(kind) << ", victim " << outcome.victim << ": " << problem;
    EXPECT_GE(outcome.victim, 0);
  }
}

TEST_P(UcxTest, AWrongKeyIsRefused) {
  Job job;
  job.size = 2;
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    Job mine = job;
    if (rank == 1) mine.identity.key = make_job_key();
    mine.join(rank, store);
  });
  EXPECT_THAT(ranks.store().get(name("error", 1), milliseconds(30'000)), HasSubstr("wrong job key"));
  EXPECT_EQ(ranks.wait(1), 1);
}

TEST_P(UcxTest, AWayThatLeadsNowhereIsAnError) {
  Job job;
  job.size = 2;
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    ::setenv("UCX_TLS", "self", 1);
    job.join(rank, store);
  });
  for (int r = 0; r < job.size; ++r)
    EXPECT_THAT(ranks.store().get(name("error", r), milliseconds(30'000)), HasSubstr("UCX"));
}

TEST(UcxPlugin, RefusesAProgramOfAnotherBuild) {
  if (const auto reason = why_not(); !reason.empty()) GTEST_SKIP() << reason;
  const SharedObject object("starling_ucx", "comm.engine", "");
  UcxRequest request;
  request.abi = kUcxPluginAbi - 1;
  std::array<char, 16> error{};
  EXPECT_EQ(
      reinterpret_cast<OpenUcxFunction>(object.find(kOpenUcxName))(&request, error.data(), error.size()),
      nullptr);
  EXPECT_STREQ(error.data(), "the engine is o");
  EXPECT_THAT(error_of<ConfigError>([&] { object.find("starling_open_mpi"); }),
              HasSubstr("libstarling_ucx.so is no engine of Starling"));
}

INSTANTIATE_TEST_SUITE_P(Ways, UcxTest, testing::Values("tcp", "tcp,cma"),
                         [](const auto& info) { return std::string(info.index == 0 ? "Tcp" : "TcpAndCma"); });

}  // namespace
}  // namespace starling
