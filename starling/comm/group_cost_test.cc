// Tests what a rank spends on a group by counting calls to the store and connections. In a large group, a
// rank must not need more calls, and must make one pair of connections per rank of another host.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/membership.h"
#include "starling/comm/network/remote_peers.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/memory/memory_store.h"
#include "starling/net/store/store_server.h"
#include "starling/testing/counting_store.h"
#include "starling/testing/memory_connections.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::Each;

// Returns, for each rank of a group of `size`, how many successful calls to the store it needs to join over
// TCP.
std::vector<int64_t> calls_to_join(int size) {
  std::vector<int64_t> calls(static_cast<size_t>(size));
  run_ranks(size, [&](const ThreadRank& at) {
    CountingStore store(*at.store);
    GroupSetup setup;
    setup.rank = at.rank;
    setup.size = at.size;
    setup.options.shared_memory = false;
    setup.connect = tcp_connector("127.0.0.1", test_identity("cost"));
    const auto group = make_group(store, setup);
    calls[static_cast<size_t>(at.rank)] = store.calls() - store.in_vain();
    barrier(*group);
  });
  return calls;
}

TEST(GroupCost, TheStoreCallsOfARankDoNotDependOnTheSizeOfTheGroup) {
  // Each rank puts its host and its address, and reads all hosts, all addresses, and the settings that rank 0
  // puts. Rank 0 connects to no lower rank, so it reads no address, but it puts the settings.
  for (const int size : {3, 6, 12}) {
    std::vector<int64_t> calls = calls_to_join(size);
    EXPECT_EQ(calls.front(), 5) << size << " ranks";
    calls.erase(calls.begin());
    EXPECT_THAT(calls, Each(5)) << size << " ranks";
  }
}

TEST(GroupCost, ARankHasTwoConnectionsToEachRankOfAnotherHost) {
  for (const int on_each : {1, 2, 3}) {
    MemoryConnections memory;
    run_ranks(6, [&](const ThreadRank& at) {
      GroupSetup setup;
      setup.rank = at.rank;
      setup.size = at.size;
      setup.host_id = setup.host_name = fmt::format("node-{}", at.rank / on_each);
      int64_t connections = 0;
      setup.connect = [&](const ConnectionSetup& wanted) {
        PeerConnections made = memory.connect(wanted);
        for (const auto* kind : {&made.collectives, &made.messages})
          connections +=
              std::count_if(kind->begin(), kind->end(), [](const auto& end) { return end != nullptr; });
        return made;
      };
      const auto group = make_group(*at.store, setup);
      barrier(*group);
      EXPECT_EQ(connections, 2 * (at.size - on_each));
    });
  }
}

TEST(GroupCost, TheAgreementAfterALossDoesNotAskForEachRank) {
  std::vector<int64_t> calls;
  for (const int size : {8, 64}) {
    MemoryStore memory;
    for (int r = 1; r < size - 1; ++r) memory.put(fmt::format("membership/1/here/{}", r), "here");
    memory.put(lost_key(size - 1), "killed by signal 9");
    CountingStore store(memory);
    EXPECT_EQ(agree_on_membership(store, 0, full_membership(size), {}).ranks.size(),
              static_cast<size_t>(size - 1));
    calls.push_back(store.calls());
  }
  EXPECT_EQ(calls[0], calls[1]);
}

// BlockedEndpoint is a connection to a rank that does not read. It logs the calls that are made.
class BlockedEndpoint final : public Endpoint {
 public:
  BlockedEndpoint(int rank, std::vector<std::string>& log) : log_(log) { set_peer_rank(rank, "node"); }
  void begin_send(const Outgoing&) override { log_.push_back(fmt::format("begins {}", peer_rank())); }
  bool step_send() override { return false; }
  void begin_recv(const Incoming&) override {}
  bool step_recv() override { return false; }
  std::optional<MessageInfo> step_peek() override { return std::nullopt; }
  bool step_cancel_send() override {
    log_.push_back(fmt::format("gives up {}", peer_rank()));
    return true;
  }
  int poll_fd() const override { return -1; }
  std::string peer() const override { return "blocked"; }
  void shutdown() override { log_.push_back(fmt::format("ends {}", peer_rank())); }

 private:
  std::vector<std::string>& log_;
};

TEST(GroupCost, AFailureIsToldToAllPeersAtTheSameTime) {
  std::vector<std::string> log;
  RemoteSetup setup;
  setup.host_names.assign(4, "node");
  setup.endpoints.emplace_back();
  for (int r = 1; r < 4; ++r) setup.endpoints.push_back(std::make_unique<BlockedEndpoint>(r, log));
  RemotePeers peers(std::move(setup));
  peers.announce({"rank 0 (node) ends", 0, false});
  // A peer whose buffers are full learns of the failure by the end of the connection.
  EXPECT_THAT(log, testing::ElementsAre("begins 1", "begins 2", "begins 3", "gives up 1", "gives up 2",
                                        "gives up 3", "ends 1", "ends 2", "ends 3"));
}

}  // namespace
}  // namespace starling
