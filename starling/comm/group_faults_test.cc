// Tests faults between ranks of one process: different collectives, late ranks, abort, and ranks that leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/network/remote_messages.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/address.h"
#include "starling/net/memory/memory_endpoint.h"
#include "starling/net/store/store_server.h"
#include "starling/net/stream/stream_endpoint.h"
#include "starling/testing/error_of.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// The timeout of groups that a rank is late for. The ranks also join and enter earlier collectives within it,
// so that it is ten times what a busy machine needs.
constexpr milliseconds kLate{3000};

std::unique_ptr<Group> join(const ThreadRank& at, milliseconds timeout, const GroupOptions& options = {}) {
  GroupSetup setup;
  setup.options = options;
  setup.rank = at.rank;
  setup.size = at.size;
  setup.options.timeout = timeout;
  setup.host_name = "node-a";
  return make_group(*at.store, setup);
}

// Returns the message of the CommError that `call` throws, or an empty string if it throws none.
template <typename Call>
std::string fault_of(const Call& call, int* peer = nullptr) {
  try {
    call();
  } catch (const CommError& error) {
    if (peer != nullptr) *peer = error.peer();
    return error.what();
  }
  return "";
}

TEST(GroupFaults, DifferentCollectivesAreAnErrorOnAllRanksThatNamesBothSides) {
  run_ranks(3, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(20'000));
    std::vector<float> data(8);
    const std::string fault = fault_of([&] {
      if (at.rank == 2) return broadcast(*group, data.data(), 8, DataType::kFp32, 0);
      all_reduce(*group, data.data(), 8, DataType::kFp32, ReduceOp::kSum);
    });
    EXPECT_THAT(fault, HasSubstr("rank 0 (node-a) is in all-reduce #1 (sum of 32 bytes fp32)"));
    EXPECT_THAT(fault, HasSubstr("rank 2 (node-a) in broadcast #1"));
    // The group stays unusable and reports the reason again.
    EXPECT_THAT(fault_of([&] { barrier(*group); }), HasSubstr("collectives differ"));
  });
}

TEST(GroupFaults, DifferentSizesAndTypesAreFound) {
  for (const bool size : {true, false}) {
    run_ranks(2, [&](const ThreadRank& at) {
      const auto group = join(at, milliseconds(20'000));
      std::vector<float> data(64);
      const size_t count = size && at.rank == 1 ? 9 : 8;
      const DataType type = !size && at.rank == 1 ? DataType::kInt32 : DataType::kFp32;
      const std::string fault =
          fault_of([&] { all_reduce(*group, data.data(), count, type, ReduceOp::kSum); });
      EXPECT_THAT(fault, HasSubstr("32 bytes fp32"));
      EXPECT_THAT(fault, HasSubstr(size ? "36 bytes fp32" : "32 bytes int32"));
    });
  }
}

TEST(GroupFaults, SplitsThatDisagreeAreAnErrorOnAllRanks) {
  run_ranks(3, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(20'000));
    std::vector<float> in(16), out(16);
    const std::vector<size_t> sent = {1, 1, 1};
    std::vector<size_t> expected = {1, 1, 1};
    if (at.rank == 2) expected[1] = 2;
    const std::string fault =
        fault_of([&] { all_to_all(*group, in.data(), sent, out.data(), expected, DataType::kFp32); });
    EXPECT_THAT(fault, HasSubstr("rank 1 (node-a) sends 4 bytes to rank 2 (node-a), which expects 8"));
  });
}

TEST(GroupFaults, ALateRankIsNamedWithTheCollective) {
  std::atomic<int> timed_out{0};
  run_ranks(3, [&](const ThreadRank& at) {
    const auto group = join(at, kLate);
    barrier(*group);
    if (at.rank == 1) {
      // This rank stays away until the other ranks have given up.
      for (int i = 0; i < 2000 && timed_out < 2; ++i) std::this_thread::sleep_for(milliseconds(10));
      EXPECT_EQ(timed_out, 2);
      return;
    }
    int late = -1;
    const std::string fault = fault_of([&] { barrier(*group); }, &late);
    ++timed_out;
    EXPECT_THAT(fault, HasSubstr("rank 1 (node-a) did not enter barrier #2 within 3000 ms"));
    EXPECT_EQ(late, 1);
  });
}

// Covers ranks that share memory and ranks that do not.
TEST(GroupFaults, ALateRankIsWarnedOfBeforeTheEnd) {
  for (const auto& [shared, message] :
       {std::pair(true, false), {false, false}, {true, true}, {false, true}}) {
    std::atomic<int> timed_out{0};
    auto ends = make_memory_endpoints(), message_ends = make_memory_endpoints();
    run_ranks(2, [&, shared = shared, message = message](const ThreadRank& at) {
      GroupSetup setup;
      setup.rank = at.rank;
      setup.size = at.size;
      setup.host_name = "node-a";
      setup.options.shared_memory = shared;
      setup.options.timeout = kLate;
      setup.options.algorithm = Algorithm::kDirect;
      std::vector<std::string> warnings;
      setup.options.warn = [&](const std::string& text) { warnings.push_back(text); };
      setup.connect = [&](const ConnectionSetup&) {
        PeerConnections connections;
        connections.collectives.resize(2);
        connections.messages.resize(2);
        connections.collectives[1 - at.rank] = std::move(at.rank == 0 ? ends.first : ends.second);
        connections.messages[1 - at.rank] =
            std::move(at.rank == 0 ? message_ends.first : message_ends.second);
        return connections;
      };
      const auto group = make_group(*at.store, setup);
      if (at.rank == 1) {
        for (int i = 0; i < 2000 && timed_out == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
        return;
      }
      int64_t number = 0;
      EXPECT_THROW(message ? recv(*group, &number, sizeof number, 1, 7) : barrier(*group), TimeoutError);
      ++timed_out;
      // On a busy machine, joining the group may be warned of too, as barrier #0.
      const std::string what = message ? "send 8 bytes with tag 7" : "barrier #1";
      std::erase_if(warnings, [&](const std::string& text) { return text.find(what) == std::string::npos; });
      ASSERT_EQ(warnings.size(), 1u);
      EXPECT_THAT(warnings[0], HasSubstr("rank 1 (node-a) did not"));
      EXPECT_THAT(warnings[0], HasSubstr(" within 0.3 s; the ranks that wait for it give up after 3 s"));
    });
  }
}

TEST(GroupFaults, AbortWakesTheOthers) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(60'000));
    if (at.rank == 0) group->abort("the user pressed Ctrl-C");
    EXPECT_THAT(fault_of([&] { barrier(*group); }), HasSubstr("the user pressed Ctrl-C"));
  });
}

TEST(GroupFaults, AbortEndsAWaitOfTheSameRank) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(60'000));
    if (at.rank == 0) {
      std::thread other([&] { group->abort("stop"); });
      EXPECT_THAT(fault_of([&] { recv(*group, nullptr, 0, 1, 5); }), HasSubstr("stop"));
      other.join();
    } else {
      EXPECT_THAT(fault_of([&] { recv(*group, nullptr, 0, 0, 5); }), HasSubstr("stop"));
    }
  });
}

TEST(GroupFaults, ARankThatLeftIsNamed) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(60'000));
    if (at.rank == 1) return;
    int peer = -1;
    EXPECT_THAT(fault_of([&] { barrier(*group); }, &peer), HasSubstr("rank 1 (node-a) left the group"));
    EXPECT_EQ(peer, 1);
  });
}

TEST(GroupFaults, ARankThatTheLauncherReportsLostEndsTheWait) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(60'000));
    if (at.rank == 1) {
      at.store->put(lost_key(1), "killed by signal 9");
      at.store->put(kFirstLostKey, "1");
      EXPECT_NE(fault_of([&] { recv(*group, nullptr, 0, 0, 1); }), "");
      return;
    }
    int peer = -1;
    EXPECT_THAT(fault_of([&] { barrier(*group); }, &peer),
                HasSubstr("rank 1 (node-a) is lost: killed by signal 9"));
    EXPECT_EQ(peer, 1);
  });
}

TEST(GroupFaults, ARankThatNeverJoinsIsNamed) {
  run_ranks(1, [](const ThreadRank& at) {
    GroupSetup setup;
    setup.rank = 0;
    setup.size = 2;
    setup.options.timeout = milliseconds(100);
    EXPECT_THAT(fault_of([&] { make_group(*at.store, setup); }),
                AllOf(HasSubstr("rank 1 did not join group 'world'"), HasSubstr("The store at memory"),
                      HasSubstr("has no key comm/0/world/host/1."), HasSubstr("comm.timeout_s")));
  });
}

// Returns the setup of rank `at` with the connections over TCP, or in shared memory.
GroupSetup setup_by(const ThreadRank& at, bool shared) {
  GroupSetup setup;
  setup.rank = at.rank;
  setup.size = at.size;
  setup.host_name = "node-a";
  setup.options.shared_memory = shared;
  setup.options.inbox_bytes = 4 << 20;
  setup.connect = tcp_connector("127.0.0.1", test_identity("inbox"));
  return setup;
}

TEST(GroupFaults, RanksConnectOverIpv6) {
  const auto six = list_interfaces();
  if (std::none_of(six.begin(), six.end(), [](const Interface& i) { return i.address.host() == "::1"; }))
    GTEST_SKIP() << "this machine has no IPv6";
  run_ranks(2, [](const ThreadRank& at) {
    GroupSetup setup = setup_by(at, false);
    setup.connect = tcp_connector("::1", test_identity("ipv6"));
    const auto group = make_group(*at.store, setup);
    float sum = 1;
    all_reduce(*group, &sum, 1, DataType::kFp32, ReduceOp::kSum);
    EXPECT_EQ(sum, 2);
  });
}

// A rank of generation 0 connects to a rank that forms generation 1.
TEST(GroupFaults, ARankOfAnEarlierGenerationDoesNotTakePartInALaterOne) {
  const JobIdentity identity = test_identity("stale");
  run_ranks(3, [&](const ThreadRank& at) {
    if (at.rank == 2) {  // the rank that was left behind has the address of rank 0
      const std::string address = at.store->get("comm/1/world/address/0", milliseconds(20'000));
      const Parties stale{
          .service = "ranks", .group = "comm/0/world/", .target = "rank 0", .caller = "rank 1 collectives"};
      const std::string refused =
          error_of([&] { tcp_connect(address, identity, stale, deadline_in(std::chrono::seconds(20))); });
      EXPECT_NE(refused.find("called rank 0 of comm/0/world/"), std::string::npos) << refused;
      at.store->put("stale", "connected");
      return;
    }
    if (at.rank ==
        1) {  // rank 0 learns of rank 1 and publishes its address; rank 1 connects after the stale rank
      at.store->put("comm/1/world/host/1", this_host_id() + " alone 1\nnode-a\n-1\n0");
      at.store->get("stale", milliseconds(20'000));
    }
    GroupSetup setup = setup_by({at.rank, 2, at.store}, false);
    setup.generation = 1;
    setup.connect = tcp_connector("127.0.0.1", identity);
    const auto group = make_group(*at.store, setup);
    float sum = 1;
    all_reduce(*group, &sum, 1, DataType::kFp32, ReduceOp::kSum);
    EXPECT_EQ(sum, 2);
  });
}

// Rank 0 fails because of rank 2 and does not destroy its group. Rank 1 waits for rank 0 and gets the reason.
TEST(GroupFaults, AWaitForAMessageOfARankThatHasFailedEnds) {
  for (const bool in_message : {true, false}) {
    std::atomic<int> failed{0};
    run_ranks(3, [&](const ThreadRank& at) {
      auto group = make_group(*at.store, setup_by(at, false));
      uint32_t word = 0;
      if (at.rank == 2) return group.reset();
      const std::string fault = fault_of([&] {
        if (at.rank == 1) return recv(*group, &word, sizeof(word), 0, 1);
        if (in_message) return recv(*group, &word, sizeof(word), 2, 1);
        barrier(*group);
      });
      EXPECT_THAT(fault, HasSubstr("rank 2 (node-a)")) << (in_message ? "message" : "collective");
      ++failed;
      for (int i = 0; i < 1000 && failed < 2; ++i) std::this_thread::sleep_for(milliseconds(10));
      EXPECT_EQ(failed, 2);
    });
  }
}

// Rank 0 aborts the group and does not destroy it. No other rank shares memory with rank 0.
TEST(GroupFaults, AbortWakesTheRanksOfOtherHosts) {
  std::atomic<int> failed{0};
  run_ranks(4, [&](const ThreadRank& at) {
    const auto group = make_group(*at.store, setup_by(at, false));
    uint32_t word = 0;
    barrier(*group);
    if (at.rank == 0) group->abort("the user pressed Ctrl-C");
    const std::string fault = fault_of([&] {
      if (at.rank == 1) return recv(*group, &word, sizeof(word), 0, 1);
      while (at.rank == 2 && !group->try_recv(&word, sizeof(word), 0, 1))
        std::this_thread::sleep_for(milliseconds(1));
      barrier(*group);
    });
    EXPECT_THAT(fault, HasSubstr("the user pressed Ctrl-C")) << at.rank;
    ++failed;
    for (int i = 0; i < 1000 && failed < 4; ++i) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(failed, 4);
  });
}

// Rank 1 sends 64 MB that rank 0 has not asked for. Rank 0 holds 4 MB of these bytes, and the sockets or
// rings hold some.
TEST(GroupFaults, ARankHoldsALimitedAmountOfMessagesThatItDoesNotReceive) {
  constexpr int kMessages = 64;
  constexpr size_t kValues = size_t{1} << 18;  // 1 MiB
  for (const bool shared : {true, false}) {
    std::atomic<int> sent{0};
    run_ranks(2, [&](const ThreadRank& at) {
      const auto group = make_group(*at.store, setup_by(at, shared));
      std::vector<int32_t> data(kValues);
      if (at.rank == 1) {
        for (int i = 0; i < kMessages; ++i, ++sent) {
          data[kValues - 1] = i;
          send(*group, data.data(), 4 * kValues, 0, 1);
        }
        return barrier(*group);
      }
      uint32_t none = 0;
      for (int quiet = 0, before = -1; quiet < 100; quiet = sent == before ? quiet + 1 : 0) {
        before = sent;
        EXPECT_FALSE(group->try_recv(&none, sizeof(none), 1, 2));  // takes in what has arrived
        std::this_thread::sleep_for(milliseconds(5));
      }
      EXPECT_LT(sent, kMessages / 2) << (shared ? "shared memory" : "TCP");
      for (int i = 0; i < kMessages; ++i) {
        recv(*group, data.data(), 4 * kValues, 1, 1);
        EXPECT_EQ(data[kValues - 1], i);
      }
      barrier(*group);
    });
  }
}

// The awaited message is behind messages that fill the inbox and that another thread receives.
TEST(GroupFaults, AFullInboxGoesOnWhenAnotherThreadReceives) {
  constexpr size_t kBytes = size_t{3} << 20;
  for (const bool shared : {true, false}) {
    run_ranks(2, [&](const ThreadRank& at) {
      const auto group = make_group(*at.store, setup_by(at, shared));
      std::vector<std::byte> data(kBytes), more(kBytes);
      if (at.rank == 1) {
        for (int i = 0; i < 3; ++i) send(*group, data.data(), kBytes, 0, 1);
        send(*group, data.data(), 8, 0, 2);
        return barrier(*group);
      }
      std::thread other([&] { recv(*group, more.data(), 8, 1, 2); });
      for (int i = 0; i < 3; ++i) recv(*group, data.data(), kBytes, 1, 1);
      other.join();
      barrier(*group);
    });
  }
}

// HugeMessage is the end of a connection on which the header of a message of 128 TiB has arrived.
class HugeMessage final : public Endpoint {
 public:
  void begin_send(const Outgoing&) override {}
  bool step_send() override { return true; }
  void begin_recv(const Incoming&) override { ADD_FAILURE() << "the message is received"; }
  bool step_recv() override { return false; }
  std::optional<MessageInfo> step_peek() override { return MessageInfo{5, uint64_t{1} << 47}; }
  int poll_fd() const override { return -1; }
  std::string peer() const override { return "memory"; }
  void shutdown() override {}
};

TEST(GroupFaults, AMessageForWhichThereIsNoMemoryIsRefused) {
  RemoteSetup setup;
  setup.rank = 0;
  setup.host_names = {"node-a", "node-b"};
  setup.timeout = milliseconds(20'000);
  setup.inbox_bytes = 1 << 20;
  setup.endpoints.resize(2);
  setup.endpoints[1] = std::make_unique<HugeMessage>();
  RemoteMessages messages(std::move(setup), [](const Failure&) {});
  char byte = 0;
  EXPECT_THAT(
      fault_of([&] { messages.recv(&byte, 1, 1, 4); }),
      AllOf(HasSubstr("rank 1 (node-b) sends 140737488355328 bytes with tag 5"), HasSubstr("no memory")));
}

TEST(GroupFaults, ASubsetWithoutThisRankIsRefused) {
  GroupSetup whole;
  whole.rank = 2;
  whole.size = 6;
  EXPECT_THROW(subset_of(whole, "stage", {0, 1}), CommError);
}

TEST(GroupFaults, WindowsOfDifferentSizesAreRefused) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(5'000));
    EXPECT_THAT(fault_of([&] { group->allocate_window(at.rank == 0 ? 1 << 20 : 1 << 21); }),
                HasSubstr("same windows"));
  });
}

TEST(LocalSync, PostsArePeekedAndAwaited) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(20'000));
    LocalSync* sync = group->local_sync();
    const auto window = group->allocate_window(4096);
    auto* number = reinterpret_cast<uint64_t*>(window->region(0));
    for (uint64_t step = 1; step <= 1000; ++step) {
      if (at.rank == 0) {
        *number = step * 3;
        sync->post(5, step);
        sync->wait(1, 6, step, "the reader");
      } else {
        sync->wait(0, 5, step, "the number of a step");
        EXPECT_EQ(*number, step * 3);
        EXPECT_GE(sync->peek(0, 5), step);
        sync->post(6, step);
      }
    }
  });
}

TEST(LocalSync, ALateRankIsNamedWithWhatIsAwaited) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, at.rank == 0 ? kLate : milliseconds(60'000));
    if (at.rank == 1) {
      EXPECT_THAT(fault_of([&] { barrier(*group); }), HasSubstr("bucket 3 of step 812"));
      return;
    }
    int late = -1;
    const std::string fault =
        fault_of([&] { group->local_sync()->wait(1, 0, 1, "bucket 3 of step 812"); }, &late);
    EXPECT_THAT(fault, HasSubstr("rank 1 (node-a) did not reach bucket 3 of step 812 within 3000 ms"));
    EXPECT_EQ(late, 1);
  });
}

}  // namespace
}  // namespace starling
