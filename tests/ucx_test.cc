// Tests groups over UCX with the tests of starling/comm/group_processes_test.cc and some that concern only
// UCX.
//
// UCX uses only its TCP, or also copies long messages from process to process (cma, as with RDMA). With both,
// the tests run with two thresholds: most messages leave unasked, or long messages wait until the receiver
// asks for them.
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/shared_object.h"
#include "starling/codec/codec_test_bytes.h"
#include "starling/comm/collective/collective_test_values.h"
#include "starling/net/ucx/ucx_plugin.h"
#include "starling/testing/error_of.h"
#include "starling/testing/group_processes.h"
#include "starling/testing/kill_round.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr Way kUcxTcp{"UcxTcp", Transport::kUcx, "tcp"};
constexpr Way kUcxTcpAsking{"UcxTcpAsking", Transport::kUcx, "tcp", "16k"};
constexpr Way kUcxTcpAndCma{"UcxTcpAndCma", Transport::kUcx, "tcp,cma", "16k"};
constexpr Way kUcxTcpAndCmaUnasked{"UcxTcpAndCmaUnasked", Transport::kUcx, "tcp,cma"};
constexpr Way kUcxAll{"UcxAll", Transport::kUcx, "all"};  // as if UCX_TLS were not set

class UcxTest : public ByWay {};
class UcxUnasked : public ByWay {};

// The receiver asks for the message only after it has left. A message that waits for the receiver would never
// leave.
TEST_P(UcxUnasked, AMegabyteLeavesBeforeItIsAskedFor) {
  ForkedJob job = this->job();
  job.size = 2;
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    const auto group = job.join(rank, store);
    const auto message = test_tensor(DataType::kUint8, 1 << 20, 0, 3);
    if (rank == 0) {
      send(*group, message.data(), message.size(), 1, 4);
      store.put("left", "yes");
    } else {
      store.get("left", milliseconds(15'000));
      std::vector<std::byte> got(message.size());
      recv(*group, got.data(), got.size(), 0, 4);
      if (got != message) throw CommError("a message is wrong");
    }
    barrier(*group);
  });
  EXPECT_NO_THROW(ranks.wait_all());
}

// A sender may begin only a bounded number of messages that the receiver does not ask for. The bound holds
// whatever the receiver's process moves in the meantime.
TEST_P(UcxUnasked, WhatNobodyReceivesIsBounded) {
  ForkedJob job = this->job();
  job.size = 2;
  job.timeout = milliseconds(3'000);
  ForkedRanks ranks(job.size, [&](int rank, Store& store) {
    const auto group = job.join(rank, store);
    const auto message = test_tensor(DataType::kUint8, 1 << 20, 0, 3);
    if (rank == 1) {
      store.get("stopped", milliseconds(30'000));
      return;
    }
    int left = 0;
    try {
      for (; left < 64; ++left) send(*group, message.data(), message.size(), 1, 4);
    } catch (const TimeoutError&) {
      // The sender waits for the receiver.
    }
    store.put("stopped", "yes");
    if (left > 3) throw CommError(std::to_string(left) + " MB left");
  });
  EXPECT_NO_THROW(ranks.wait_all());
}

// The formulas are those of docs/reference/codecs.md.
TEST_P(UcxTest, CodecsSendTheBytesOfTheFormula) {
  for (int p = 2; p <= 8; ++p) {
    ForkedJob job = this->job();
    job.size = p;
    job.algorithm = Algorithm::kDirect;
    run(job, [](Group& group) { check_codec_bytes(group, 20'011); });
  }
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

struct Told {
  std::string name, value;
  std::string file;  // text of UCX's configuration file
};

// Returns the portion size with which the engine sends over TCP on loopback if UCX has these settings.
size_t portion_where(const Told& told) {
  ForkedRanks ranks(1, [&](int /*rank*/, Store& store) {
    ::unsetenv("UCX_RNDV_THRESH");
    ::setenv("UCX_TLS", "tcp", 1);
    if (!told.name.empty()) ::setenv(told.name.c_str(), told.value.c_str(), 1);
    const TempDir folder;
    if (!told.file.empty()) {
      write_bytes(folder.path() / "ucx.conf", told.file);
      ::setenv("UCX_CONFIG_DIR", folder.path().c_str(), 1);
    }
    const SharedObject object("starling_ucx", "comm.engine", "");
    UcxRequest request;
    request.net_devices = "lo";
    std::array<char, 256> text{};
    const std::unique_ptr<UcxLibrary> library(
        reinterpret_cast<OpenUcxFunction>(object.find(kOpenUcxName))(&request, text.data(), text.size()));
    if (!library) throw CommError(text.data());
    std::string error;
    const auto worker = library->make_worker(error);
    if (!worker) throw CommError(error);
    store.put("portion", std::to_string(worker->portion()));
  });
  ranks.wait_all();
  return std::stoul(ranks.store().get("portion", milliseconds(1'000)));
}

TEST(UcxPlugin, SendsUnaskedOnlyWhatIsCertainToStayInOnePiece) {
  if (const auto reason = unavailable(Transport::kUcx); !reason.empty()) GTEST_SKIP() << reason;
  for (const Told& told : std::vector<Told>{{"", "", ""},
                                            {"UCX_TLS", "all", ""},
                                            {"UCX_TLS", "tcp,cma", ""},
                                            {"UCX_TCP_RX_SEG_SIZE", "128k", ""},
                                            {"", "", "UCX_TCP_RX_SEG_SIZE=65536\n"}})
    EXPECT_EQ(portion_where(told), 61'440u) << told.name << "=" << told.value << " " << told.file;
  for (const Told& told : std::vector<Told>{{"UCX_RNDV_THRESH", "16k", ""},
                                            {"UCX_RNDV_THRESH", "auto", ""},
                                            {"UCX_ZCOPY_THRESH", "inf", ""},
                                            {"UCX_TCP_RX_SEG_SIZE", "32k", ""},
                                            {"UCX_TCP_TX_SEG_SIZE", "4k", ""},
                                            {"UCX_TLS", "tcp,posix", ""},
                                            {"UCX_TLS", "^cma", ""},
                                            {"", "", "UCX_RNDV_THRESH=16k\n"},
                                            {"", "", "UCX_ZCOPY_THRESH=inf\n"},
                                            {"", "", "UCX_TCP_RX_SEG_SIZE=16k\n"}})
    EXPECT_EQ(portion_where(told), 0u) << told.name << "=" << told.value << " " << told.file;
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
              HasSubstr("libstarling_ucx.so is not an engine of Starling"));
}

const auto kWays = testing::Values(kUcxTcp, kUcxTcpAsking, kUcxTcpAndCma, kUcxTcpAndCmaUnasked);
INSTANTIATE_TEST_SUITE_P(Ways, GroupProcesses, kWays, name_of_way);
INSTANTIATE_TEST_SUITE_P(Ways, ConnectedProcesses, kWays, name_of_way);
INSTANTIATE_TEST_SUITE_P(Ways, UcxTest, kWays, name_of_way);
INSTANTIATE_TEST_SUITE_P(All, UcxTest, testing::Values(kUcxAll), name_of_way);
INSTANTIATE_TEST_SUITE_P(Ways, UcxUnasked, testing::Values(kUcxTcp, kUcxTcpAndCmaUnasked, kUcxAll),
                         name_of_way);

}  // namespace
}  // namespace starling
