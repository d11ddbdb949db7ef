// Groups over UCX, by its TCP alone, where most messages leave unasked or where long ones wait for the receiver, and with the rest of long
// messages copied from process to process (cma, as RDMA would): the tests of starling/comm/group_processes_test.cc, and what concerns UCX
// alone.
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/shared_object.h"
#include "starling/comm/collective_test_values.h"
#include "starling/net/ucx/plugin.h"
#include "starling/testing/error_of.h"
#include "starling/testing/group_processes.h"
#include "starling/testing/kill_round.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr Way kUcxTcp{"UcxTcp", Transport::kUcx, "tcp"};
constexpr Way kUcxTcpAsking{"UcxTcpAsking", Transport::kUcx, "tcp", "16k"};
constexpr Way kUcxTcpAndCma{"UcxTcpAndCma", Transport::kUcx, "tcp,cma", "16k"};

class UcxTest : public ByWay {};
class UcxUnasked : public ByWay {};

// The receiver asks for it only once it has left; what must be asked for first would never leave.
TEST_P(UcxUnasked, AMegabyteLeavesBeforeItIsAskedFor) {
  ForkedJob job = this->job();
  job.size = 2;
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    const auto group = job.join(rank, store);
    const auto letter = test_tensor(DataType::kUint8, 1 << 20, 0, 3);
    if (rank == 0) {
      group->send(letter.data(), letter.size(), 1, 4);
      store.put("left", "yes");
    } else {
      store.get("left", milliseconds(15'000));
      std::vector<std::byte> got(letter.size());
      group->recv(got.data(), got.size(), 0, 4);
      if (got != letter) throw CommError("a letter is wrong");
    }
    group->barrier();
  });
  EXPECT_NO_THROW(ranks.wait_all());
}

TEST_P(UcxTest, TheRightRankIsNamedInEveryCollective) {
  uint64_t seed = 1;
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllToAll,
                                    CollectiveKind::kBroadcast, CollectiveKind::kSend})
    EXPECT_EQ(problems_of({.kind = kind, .transport = Transport::kUcx, .ranks = 3, .seed = seed++}), "");
}

TEST_P(UcxTest, AWayThatLeadsNowhereIsAnError) {
  ForkedJob job = this->job();
  job.size = 2;
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    ::setenv("UCX_TLS", "self", 1);
    job.join(rank, store);
  });
  for (int r = 0; r < job.size; ++r)
    EXPECT_THAT(ranks.store().get(rank_key("error", r), milliseconds(30'000)), HasSubstr("UCX"));
}

TEST(UcxPlugin, RefusesAProgramOfAnotherBuild) {
  if (const auto reason = unavailable(Transport::kUcx); !reason.empty()) GTEST_SKIP() << reason;
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

INSTANTIATE_TEST_SUITE_P(Ways, GroupProcesses, testing::Values(kUcxTcp, kUcxTcpAsking, kUcxTcpAndCma),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(Ways, ConnectedProcesses, testing::Values(kUcxTcp, kUcxTcpAsking, kUcxTcpAndCma),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(Ways, UcxTest, testing::Values(kUcxTcp, kUcxTcpAsking, kUcxTcpAndCma), name_of_way);

INSTANTIATE_TEST_SUITE_P(Ways, UcxUnasked, testing::Values(kUcxTcp), name_of_way);

}  // namespace
}  // namespace starling
