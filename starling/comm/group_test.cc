// Compares the collectives of a group whose ranks are threads with a naive computation.
#include "starling/comm/group.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/collective/collective_test_values.h"
#include "starling/comm/recorder/flight_recorder_report.h"
#include "starling/testing/memory_connections.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/temp_dir.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

// Layout says which ranks share memory.
enum class Layout { kOneHost, kTwoHosts, kAllApart };

struct Case {
  int ranks;
  Layout layout;
};

std::unique_ptr<Group> join(const ThreadRank& at, MemoryConnections& connections, Layout layout,
                            std::chrono::milliseconds timeout = std::chrono::seconds(30),
                            const GroupOptions& options = {}) {
  GroupSetup setup;
  setup.options = options;
  setup.rank = at.rank;
  setup.size = at.size;
  setup.options.timeout = timeout;
  setup.options.shared_memory = layout != Layout::kAllApart;
  // kTwoHosts has ranks 0, 2, 4 and ranks 1, 3: the ranks of a host do not follow one another.
  const int host = layout == Layout::kTwoHosts ? at.rank % 2 : 0;
  setup.connect = [&connections](const ConnectionSetup& m) { return connections.connect(m); };
  setup.host_id = "host " + std::to_string(host);
  setup.host_name = "node-" + std::string(1, static_cast<char>('a' + host));
  return make_group(*at.store, setup);
}

class GroupTest : public testing::TestWithParam<Case> {
 protected:
  void on_all(const std::function<void(Group&)>& body) {
    MemoryConnections connections;
    run_ranks(GetParam().ranks, [&](const ThreadRank& at) {
      const auto group = join(at, connections, GetParam().layout);
      body(*group);
    });
  }
};

// Groups of at least two ranks.
class GroupOfSeveralTest : public GroupTest {};

using Buffer = std::vector<std::byte>;

TEST_P(GroupTest, AllReduceOfEveryTypeAndOperation) {
  on_all([](Group& group) {
    int salt = 0;
    for (const DataType type : kTypes) {
      for (const ReduceOp op : kOps) {
        if (!thorough() && !is_common(type, op)) continue;
        if (is_bitwise(op) && is_floating(type)) {
          EXPECT_THROW(all_reduce(group, nullptr, 0, type, op), CommError);
          continue;
        }
        for (const size_t count : {0, 1, 5, 1000, thorough() ? 70001 : 20001}) {
          Buffer data = test_tensor(type, count, group.rank(), ++salt);
          all_reduce(group, data.data(), count, type, op);
          ASSERT_TRUE(equal_bytes(data, reduced_tensor(type, count, group.size(), op, salt)))
              << name_of(type) << name_of(op) << count;
        }
      }
    }
  });
}

TEST_P(GroupTest, AllReduceInAWindow) {
  on_all([](Group& group) {
    const auto window = group.allocate_window(3 << 20);
    std::byte* own = window->region(group.local_rank());
    int salt = 100;
    for (const size_t count : {1, 6000, 100003, thorough() ? 700001 : 300001}) {
      // The ranks use different places of their windows.
      std::byte* at = own + 64 * static_cast<size_t>(group.rank());
      const Buffer data = test_tensor(DataType::kFp32, count, group.rank(), ++salt);
      std::copy(data.begin(), data.end(), at);
      all_reduce(group, at, count, DataType::kFp32, ReduceOp::kSum);
      const Buffer got(at, at + data.size());
      ASSERT_TRUE(
          equal_bytes(got, reduced_tensor(DataType::kFp32, count, group.size(), ReduceOp::kSum, salt)))
          << count;
      barrier(group);  // the next values must not be written while a peer still reads
    }
  });
}

// Large windows are rounded up to huge pages and lie at multiples of huge pages, one region after another.
TEST_P(GroupTest, LargeWindowsAreSharedByteForByte) {
  on_all([](Group& group) {
    constexpr size_t kHugePage = size_t{2} << 20;
    const auto window = group.allocate_window((size_t{9} << 20) + 1);
    ASSERT_EQ(window->bytes(), size_t{10} << 20);
    const auto at = [&](int r, size_t i) { return window->region(r) + i * (window->bytes() - 1) / 7; };
    const int me = group.local_rank(), locals = static_cast<int>(group.local_ranks().size());
    for (int r = 0; r < locals; ++r) {
      ASSERT_EQ(window->region(r), window->region(0) + static_cast<size_t>(r) * window->bytes());
      ASSERT_EQ(reinterpret_cast<uintptr_t>(window->region(r)) % kHugePage, 0U);
    }
    for (size_t i = 0; i < 8; ++i) ASSERT_EQ(*at(me, i), std::byte{0});
    for (size_t i = 0; i < 8; ++i) *at(me, i) = static_cast<std::byte>(10 * static_cast<size_t>(me) + i);
    barrier(group);
    for (int r = 0; r < locals; ++r) {
      for (size_t i = 0; i < 8; ++i)
        ASSERT_EQ(*at(r, i), static_cast<std::byte>(10 * static_cast<size_t>(r) + i));
    }
    barrier(group);
  });
}

TEST_P(GroupTest, SomeTensorsInWindowsSomeNot) {
  on_all([](Group& group) {
    const auto window = group.allocate_window(1 << 20);
    const size_t count = thorough() ? 200000 : 100000;
    Buffer ordinary = test_tensor(DataType::kFp32, count, group.rank(), 7);
    std::byte* data = group.rank() % 2 == 0 ? window->region(group.local_rank()) : ordinary.data();
    std::copy(ordinary.begin(), ordinary.end(), data);
    all_reduce(group, data, count, DataType::kFp32, ReduceOp::kMax);
    ASSERT_TRUE(equal_bytes(Buffer(data, data + ordinary.size()),
                            reduced_tensor(DataType::kFp32, count, group.size(), ReduceOp::kMax, 7)));
  });
}

TEST_P(GroupTest, BroadcastFromEveryRoot) {
  on_all([](Group& group) {
    const auto window = group.allocate_window(2 << 20);
    for (int root = 0; root < group.size(); ++root) {
      for (const size_t count : {0, 3, 5000, thorough() ? 400001 : 40001}) {
        const Buffer want = test_tensor(DataType::kInt32, count, root, root);
        Buffer data = test_tensor(DataType::kInt32, count, group.rank(), root);
        broadcast(group, data.data(), count, DataType::kInt32, root);
        ASSERT_TRUE(equal_bytes(data, want)) << root << " " << count;
        std::byte* at = window->region(group.local_rank());
        const Buffer mine = test_tensor(DataType::kInt32, count, group.rank(), root);
        std::copy(mine.begin(), mine.end(), at);
        broadcast(group, at, count, DataType::kInt32, root);
        ASSERT_TRUE(equal_bytes(Buffer(at, at + want.size()), want)) << root << " " << count;
      }
    }
  });
}

TEST_P(GroupTest, ReduceScatter) {
  on_all([](Group& group) {
    const auto window = group.allocate_window(size_t{5} << 20);
    const int p = group.size();
    for (const size_t count : {0, 1, 1000, thorough() ? 200001 : 60001}) {
      const Buffer in = test_tensor(DataType::kFp32, count * p, group.rank(), 3);
      Buffer out(count * 4);
      const Buffer want = reduced_tensor(DataType::kFp32, count, p, ReduceOp::kAvg, 3, count * group.rank());
      reduce_scatter(group, in.data(), out.data(), count, DataType::kFp32, ReduceOp::kAvg);
      ASSERT_TRUE(equal_bytes(out, want)) << count;
      std::byte* at = window->region(group.local_rank());
      std::copy(in.begin(), in.end(), at);
      std::byte* part = at + out.size() * group.rank();  // in place
      reduce_scatter(group, at, part, count, DataType::kFp32, ReduceOp::kAvg);
      ASSERT_TRUE(equal_bytes(Buffer(part, part + out.size()), want)) << count;
      barrier(group);
    }
  });
}

TEST_P(GroupTest, AllGather) {
  on_all([](Group& group) {
    const auto window = group.allocate_window(2 << 20);
    for (const size_t count : {0, 1, 9000, thorough() ? 300001 : 100001}) {
      const Buffer in = test_tensor(DataType::kFp32, count, group.rank(), 4);
      Buffer want;
      for (int r = 0; r < group.size(); ++r) {
        const Buffer part = test_tensor(DataType::kFp32, count, r, 4);
        want.insert(want.end(), part.begin(), part.end());
      }
      Buffer out(want.size());
      all_gather(group, in.data(), out.data(), count, DataType::kFp32);
      ASSERT_TRUE(equal_bytes(out, want)) << count;
      std::byte* at = window->region(group.local_rank());
      std::copy(in.begin(), in.end(), at);
      std::fill(out.begin(), out.end(), std::byte{0});
      all_gather(group, at, out.data(), count, DataType::kFp32);
      ASSERT_TRUE(equal_bytes(out, want)) << count;
      std::copy(in.begin(), in.end(), out.begin() + static_cast<long>(in.size()) * group.rank());
      all_gather(group, out.data() + in.size() * group.rank(), out.data(), count, DataType::kFp32);
      ASSERT_TRUE(equal_bytes(out, want)) << count << " in place";
    }
  });
}

// Returns how many elements rank `from` sends to rank `to`. The numbers are uneven, and some are 0.
size_t split(int from, int to, size_t scale) {
  return static_cast<size_t>((from * 3 + to * 5) % 4) * scale;
}

TEST_P(GroupTest, AllToAllWithUnevenSplits) {
  on_all([](Group& group) {
    const auto window = group.allocate_window(size_t{8} << 20);
    const int p = group.size(), me = group.rank();
    for (const size_t scale : {1, 1000, thorough() ? 90001 : 30001}) {
      std::vector<size_t> in_counts, out_counts;
      Buffer in, want;
      for (int r = 0; r < p; ++r) {
        in_counts.push_back(split(me, r, scale));
        out_counts.push_back(split(r, me, scale));
        const Buffer to = test_tensor(DataType::kFp32, in_counts.back(), me * p + r, 5);
        const Buffer from = test_tensor(DataType::kFp32, out_counts.back(), r * p + me, 5);
        in.insert(in.end(), to.begin(), to.end());
        want.insert(want.end(), from.begin(), from.end());
      }
      Buffer out(want.size());
      all_to_all(group, in.data(), in_counts, out.data(), out_counts, DataType::kFp32);
      ASSERT_TRUE(equal_bytes(out, want)) << scale;
      std::byte* at = window->region(group.local_rank());
      std::copy(in.begin(), in.end(), at);
      std::fill(out.begin(), out.end(), std::byte{0});
      all_to_all(group, at, in_counts, out.data(), out_counts, DataType::kFp32);
      ASSERT_TRUE(equal_bytes(out, want)) << scale;
    }
  });
}

TEST_P(GroupOfSeveralTest, SendAndReceiveByTagInOrder) {
  on_all([](Group& group) {
    const int p = group.size(), me = group.rank();
    const int next = (me + 1) % p, previous = (me + p - 1) % p;
    // Every rank sends more than a ring or a socket holds before it receives.
    const Buffer big = test_tensor(DataType::kFp64, 300001, me, 1),
                 small = test_tensor(DataType::kFp64, 3, me, 2);
    send(group, big.data(), big.size(), next, 1);
    send(group, small.data(), small.size(), next, 2);
    send(group, nullptr, 0, next, 3);
    send(group, small.data(), 8, next, 2);
    Buffer got(small.size());
    recv(group, got.data(), got.size(), previous, 2);
    EXPECT_TRUE(equal_bytes(got, test_tensor(DataType::kFp64, 3, previous, 2)));
    recv(group, nullptr, 0, previous, 3);
    got.resize(big.size());
    recv(group, got.data(), got.size(), previous, 1);
    EXPECT_TRUE(equal_bytes(got, test_tensor(DataType::kFp64, 300001, previous, 1)));
    got.resize(8);
    recv(group, got.data(), 8, previous, 2);
    EXPECT_TRUE(equal_bytes(got, test_tensor(DataType::kFp64, 1, previous, 2)));
  });
}

// Each rank takes the messages of the other ranks in the order of arrival. The longer messages arrive in
// several pieces.
TEST_P(GroupTest, ReceivesWithoutWaiting) {
  on_all([](Group& group) {
    const int p = group.size(), me = group.rank();
    for (const size_t count : {0, 40, 90001}) {
      const Buffer mine = test_tensor(DataType::kFp64, count, me, 1);
      Buffer got(mine.size());
      EXPECT_FALSE(group.try_recv(got.data(), got.size(), (me + 1) % p, 99));
      for (int r = 1; r < p; ++r) send(group, mine.data(), mine.size(), (me + r) % p, 4);
      std::vector<bool> heard(p, false);
      for (int left = p - 1; left > 0;) {
        for (int r = 0; r < p; ++r) {
          if (heard[r] || !group.try_recv(got.data(), got.size(), r, 4)) continue;
          ASSERT_TRUE(equal_bytes(got, test_tensor(DataType::kFp64, count, r, 1)));
          heard[r] = true;
          --left;
        }
      }
      EXPECT_FALSE(heard[me]);
      barrier(group);
    }
  });
}

TEST_P(GroupTest, ManyMixedCollectivesInARow) {
  on_all([](Group& group) {
    std::mt19937 random(5);  // gives equal numbers on all ranks
    for (int step = 0; step < (thorough() ? 300 : 100); ++step) {
      const size_t count = random() % (random() % 8 == 0 ? 200000 : 500);
      const int root = static_cast<int>(random() % static_cast<unsigned>(group.size()));
      switch (random() % 4) {
        case 0:
          barrier(group);
          break;
        case 1: {
          Buffer data = test_tensor(DataType::kBf16, count, group.rank(), step);
          broadcast(group, data.data(), count, DataType::kBf16, root);
          ASSERT_TRUE(equal_bytes(data, test_tensor(DataType::kBf16, count, root, step))) << step;
          break;
        }
        case 2: {
          Buffer in = test_tensor(DataType::kInt64, count, group.rank(), step), out(in.size() * group.size());
          all_gather(group, in.data(), out.data(), count, DataType::kInt64);
          ASSERT_TRUE(equal_bytes(Buffer(out.begin() + static_cast<long>(in.size()) * root,
                                         out.begin() + static_cast<long>(in.size()) * (root + 1)),
                                  test_tensor(DataType::kInt64, count, root, step)));
          break;
        }
        default: {
          Buffer data = test_tensor(DataType::kFp16, count, group.rank(), step);
          all_reduce(group, data.data(), count, DataType::kFp16, ReduceOp::kSum);
          ASSERT_TRUE(
              equal_bytes(data, reduced_tensor(DataType::kFp16, count, group.size(), ReduceOp::kSum, step)))
              << step;
        }
      }
    }
  });
}

TEST_P(GroupTest, TellsWhereRanksAre) {
  on_all([](Group& group) {
    EXPECT_EQ(group.local_ranks()[group.local_rank()], group.rank());
    const std::string host = group.host_of(group.rank());
    EXPECT_EQ(host, GetParam().layout == Layout::kTwoHosts
                        ? std::string("node-") + static_cast<char>('a' + group.rank() % 2)
                        : "node-a");
  });
}

// Returns the cases with at least `least` ranks, which is 1 or 2.
std::vector<Case> cases_from(int least) {
  std::vector<Case> cases;
  for (int p = least; p <= 5; ++p) cases.push_back({p, Layout::kOneHost});
  for (const int p : {3, 4, 5}) cases.push_back({p, Layout::kTwoHosts});
  for (const int p : {2, 3, 5}) cases.push_back({p, Layout::kAllApart});
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const char* names[] = {"OneHost", "TwoHosts", "AllApart"};
  return names[static_cast<int>(info.param.layout)] + std::to_string(info.param.ranks);
}

// The named algorithm runs between hosts, and the flight recorder has the operations.
TEST(GroupAlgorithms, EveryNameOnTwoHostsAndAllApart) {
  for (const Layout layout : {Layout::kTwoHosts, Layout::kAllApart}) {
    for (const char* name : {"auto", "ring", "direct", "halving-doubling", "binomial-tree", "double-tree",
                             "bruck", "star", "hierarchical"}) {
      SCOPED_TRACE(name);
      MemoryConnections connections;
      const TempDir folder;
      run_ranks(5, [&](const ThreadRank& at) {
        GroupOptions options;
        options.algorithm = algorithm_named(name);
        options.recorder =
            std::make_shared<FlightRecorder>(recorder_file(folder.path(), at.rank), at.rank, at.size, "node");
        const auto group = join(at, connections, layout, std::chrono::seconds(30), options);
        for (const size_t count : {3, 100'003}) {  // the larger tensor is divided among the lanes
          Buffer data = test_tensor(DataType::kFp32, count, at.rank, 1);
          all_reduce(*group, data.data(), count, DataType::kFp32, ReduceOp::kAvg);
          EXPECT_TRUE(equal_bytes(data, reduced_tensor(DataType::kFp32, count, 5, ReduceOp::kAvg, 1)));
        }
        const Buffer mine = test_tensor(DataType::kInt32, 50, at.rank, 2);
        Buffer part(40), all(200 * 5);
        reduce_scatter(*group, mine.data(), part.data(), 10, DataType::kInt32, ReduceOp::kSum);
        EXPECT_TRUE(
            equal_bytes(part, reduced_tensor(DataType::kInt32, 10, 5, ReduceOp::kSum, 2, 10 * at.rank)));
        all_gather(*group, mine.data(), all.data(), 50, DataType::kInt32);
        for (int r = 0; r < 5; ++r) {
          const Buffer got(all.begin() + 200 * r, all.begin() + 200 * (r + 1));
          EXPECT_TRUE(equal_bytes(got, test_tensor(DataType::kInt32, 50, r, 2)));
        }
        const std::vector<size_t> ten(5, 10);
        all_to_all(*group, mine.data(), ten, all.data(), ten, DataType::kInt32);
        for (int r = 0; r < 5; ++r) {
          const Buffer got(all.begin() + 40 * r, all.begin() + 40 * (r + 1));
          EXPECT_TRUE(equal_bytes(got, test_tensor(DataType::kInt32, 10, r, 2, 10 * at.rank)));
        }
      });
      const auto recordings = read_recordings(folder.path());
      ASSERT_EQ(recordings.size(), 5u);
      EXPECT_EQ(recordings[4].groups, std::vector<std::string>{"world"});
      ASSERT_EQ(recordings[4].records.size(), 5u);
      EXPECT_EQ(describe(recordings[4].records[1]), "all-reduce #2 (avg of 400012 bytes fp32)");
      EXPECT_TRUE(who_waits(recordings).empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupTest, testing::ValuesIn(cases_from(1)), case_name);
INSTANTIATE_TEST_SUITE_P(Ranks, GroupOfSeveralTest, testing::ValuesIn(cases_from(2)), case_name);

}  // namespace
}  // namespace starling
