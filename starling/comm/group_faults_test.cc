// What goes wrong between ranks in one process: other collectives, late ranks, abort, ranks that leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/net/memory/endpoint.h"
#include "starling/net/store_server.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::unique_ptr<Group> join(const ThreadRank& at, milliseconds timeout, const GroupOptions& options = {}) {
  GroupSetup setup;
  setup.options = options;
  setup.rank = at.rank;
  setup.size = at.size;
  setup.options.timeout = timeout;
  setup.host_name = "node-a";
  return make_group(*at.store, setup);
}

// The message of the CommError that `call` throws; empty if it throws none.
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
      if (at.rank == 2) return group->broadcast(data.data(), 8, DataType::kFp32, 0);
      group->all_reduce(data.data(), 8, DataType::kFp32, ReduceOp::kSum);
    });
    EXPECT_THAT(fault, HasSubstr("rank 0 (node-a) is in all-reduce #1 (sum of 32 bytes fp32)"));
    EXPECT_THAT(fault, HasSubstr("rank 2 (node-a) in broadcast #1"));
    // The group stays unusable and says why.
    EXPECT_THAT(fault_of([&] { group->barrier(); }), HasSubstr("collectives differ"));
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
          fault_of([&] { group->all_reduce(data.data(), count, type, ReduceOp::kSum); });
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
        fault_of([&] { group->all_to_all(in.data(), sent, out.data(), expected, DataType::kFp32); });
    EXPECT_THAT(fault, HasSubstr("rank 1 (node-a) sends 4 bytes to rank 2 (node-a), which expects 8"));
  });
}

TEST(GroupFaults, ALateRankIsNamedWithTheCollective) {
  std::atomic<int> timed_out{0};
  run_ranks(3, [&](const ThreadRank& at) {
    const auto group = join(at, milliseconds(300));
    group->barrier();
    if (at.rank == 1) {
      // Stays away until the others have given up.
      for (int i = 0; i < 2000 && timed_out < 2; ++i) std::this_thread::sleep_for(milliseconds(10));
      EXPECT_EQ(timed_out, 2);
      return;
    }
    int late = -1;
    const std::string fault = fault_of([&] { group->barrier(); }, &late);
    ++timed_out;
    EXPECT_THAT(fault, HasSubstr("rank 1 (node-a) did not enter barrier #2 within 300 ms"));
    EXPECT_EQ(late, 1);
  });
}

// In shared memory, and between ranks that do not share it.
TEST(GroupFaults, ALateRankIsWarnedOfBeforeTheEnd) {
  for (const bool shared : {true, false}) {
    std::atomic<int> timed_out{0};
    auto ends = make_memory_endpoints(), mail_ends = make_memory_endpoints();
    run_ranks(2, [&](const ThreadRank& at) {
      GroupSetup setup;
      setup.rank = at.rank;
      setup.size = at.size;
      setup.host_name = "node-a";
      setup.options.shared_memory = shared;
      setup.options.timeout = milliseconds(300);
      setup.options.algorithm = Algorithm::kDirect;
      std::vector<std::string> warnings;
      setup.options.warn = [&](const std::string& text) { warnings.push_back(text); };
      setup.connect = [&](const MeshSetup&) {
        Mesh mesh;
        mesh.collectives.resize(2);
        mesh.mail.resize(2);
        mesh.collectives[1 - at.rank] = std::move(at.rank == 0 ? ends.first : ends.second);
        mesh.mail[1 - at.rank] = std::move(at.rank == 0 ? mail_ends.first : mail_ends.second);
        return mesh;
      };
      const auto group = make_group(*at.store, setup);
      if (at.rank == 1) {
        for (int i = 0; i < 2000 && timed_out == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
        return;
      }
      EXPECT_THROW(group->barrier(), TimeoutError);
      ++timed_out;
      ASSERT_EQ(warnings.size(), 1u);
      EXPECT_THAT(warnings[0], HasSubstr("rank 1 (node-a) did not"));
      EXPECT_THAT(warnings[0],
                  HasSubstr("barrier #1 within 0.03 s; those who wait for it give up after 0.3 s"));
    });
  }
}

TEST(GroupFaults, AbortWakesTheOthers) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(60'000));
    if (at.rank == 0) group->abort("the user pressed Ctrl-C");
    EXPECT_THAT(fault_of([&] { group->barrier(); }), HasSubstr("the user pressed Ctrl-C"));
  });
}

TEST(GroupFaults, AbortEndsAWaitOfTheSameRank) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(60'000));
    if (at.rank == 0) {
      std::thread other([&] { group->abort("stop"); });
      EXPECT_THAT(fault_of([&] { group->recv(nullptr, 0, 1, 5); }), HasSubstr("stop"));
      other.join();
    } else {
      EXPECT_THAT(fault_of([&] { group->recv(nullptr, 0, 0, 5); }), HasSubstr("stop"));
    }
  });
}

TEST(GroupFaults, ARankThatLeftIsNamed) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(60'000));
    if (at.rank == 1) return;
    int peer = -1;
    EXPECT_THAT(fault_of([&] { group->barrier(); }, &peer), HasSubstr("rank 1 (node-a) left the group"));
    EXPECT_EQ(peer, 1);
  });
}

TEST(GroupFaults, ARankThatTheLauncherReportsLostEndsTheWait) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = join(at, milliseconds(60'000));
    if (at.rank == 1) {
      at.store->put(lost_key(1), "killed by signal 9");
      at.store->put(kFirstLostKey, "1");
      EXPECT_NE(fault_of([&] { group->recv(nullptr, 0, 0, 1); }), "");
      return;
    }
    int peer = -1;
    EXPECT_THAT(fault_of([&] { group->barrier(); }, &peer),
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
                HasSubstr("rank 1 did not join group 'world'"));
  });
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
    const auto group = join(at, milliseconds(at.rank == 0 ? 200 : 20'000));
    if (at.rank == 1) {
      EXPECT_THAT(fault_of([&] { group->barrier(); }), HasSubstr("bucket 3 of step 812"));
      return;
    }
    int late = -1;
    const std::string fault =
        fault_of([&] { group->local_sync()->wait(1, 0, 1, "bucket 3 of step 812"); }, &late);
    EXPECT_THAT(fault, HasSubstr("rank 1 (node-a) did not reach bucket 3 of step 812 within 200 ms"));
    EXPECT_EQ(late, 1);
  });
}

}  // namespace
}  // namespace starling
