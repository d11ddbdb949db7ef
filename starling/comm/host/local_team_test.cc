// Tests the protocols of shared memory on one mapping that all threads share, so that ThreadSanitizer sees
// every access. In a real group each rank maps the windows at another address, which hides races from
// ThreadSanitizer.
#include "starling/comm/host/local_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/collective/collective_test_values.h"
#include "starling/comm/collective/shm_all_gather.h"
#include "starling/comm/collective/shm_broadcast.h"
#include "starling/comm/collective/shm_direct_all_reduce.h"
#include "starling/comm/host/local_messages.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

class HeapWindow final : public Window {
 public:
  HeapWindow(size_t bytes, int ranks) : bytes_((bytes + 4095) / 4096 * 4096) {
    memory_ = static_cast<std::byte*>(std::aligned_alloc(4096, bytes_ * static_cast<size_t>(ranks)));
    std::memset(memory_, 0, bytes_ * static_cast<size_t>(ranks));
  }
  ~HeapWindow() override { std::free(memory_); }
  size_t bytes() const override { return bytes_; }
  std::byte* region(int r) const override { return memory_ + bytes_ * static_cast<size_t>(r); }

 private:
  size_t bytes_;
  std::byte* memory_;
};

struct SharedHost {
  explicit SharedHost(int p, size_t tensor_bytes = 1 << 20)
      : control(std::make_shared<HeapWindow>(ControlLayout(p).bytes(), p)),
        staging(std::make_shared<HeapWindow>(kStagingBytes, p)),
        rings(std::make_shared<HeapWindow>(static_cast<size_t>(p) * ring_bytes(p), p)),
        tensors(std::make_shared<HeapWindow>(tensor_bytes, p)) {}
  LocalTeamSetup setup(const ThreadRank& at) const {
    LocalTeamSetup out;
    out.local_rank = at.rank;
    for (int r = 0; r < at.size; ++r) out.ranks.push_back(r);
    out.host = "node-a";
    out.control = control;
    out.staging = staging;
    out.timeout = std::chrono::seconds(60);
    out.policy = WaitPolicy::for_ranks(at.size, 2);
    return out;
  }
  std::shared_ptr<Window> control, staging, rings, tensors;
};

class LocalTeamTest : public testing::TestWithParam<int> {};

TEST_P(LocalTeamTest, CollectivesOnOneMapping) {
  const int p = GetParam();
  const SharedHost host(p);
  run_ranks(p, [&](const ThreadRank& at) {
    LocalTeam team(host.setup(at));
    team.add_window(host.tensors);
    uint64_t sequence = 0;
    for (const size_t count : {10, 5000, 200'000}) {
      const Operation sum{
          CollectiveKind::kAllReduce, DataType::kFp32, ReduceOp::kSum, 0, count * 4, ++sequence};
      const auto want = reduced_tensor(DataType::kFp32, count, p, ReduceOp::kSum, 1);
      auto data = test_tensor(DataType::kFp32, count, at.rank, 1);
      std::byte* shared = host.tensors->region(at.rank);
      std::copy(data.begin(), data.end(), shared);
      shm_all_reduce(team, sum, data.data(), count, 1);
      ASSERT_EQ(data, want);
      shm_all_reduce(team, sum, shared, count, 1);
      ASSERT_TRUE(std::equal(want.begin(), want.end(), shared));
      const Operation share{
          CollectiveKind::kBroadcast, DataType::kFp32, ReduceOp::kSum, p - 1, count * 4, ++sequence};
      data = test_tensor(DataType::kFp32, count, at.rank, 2);
      shm_broadcast(team, share, data.data(), count * 4, p - 1);
      ASSERT_EQ(data, test_tensor(DataType::kFp32, count, p - 1, 2));
      const Operation gather{
          CollectiveKind::kAllGather, DataType::kFp32, ReduceOp::kSum, 0, count * 4, ++sequence};
      std::vector<std::byte> all(count * 4 * static_cast<size_t>(p));
      shm_all_gather(team, gather, shared, all.data(), count * 4);
      for (int r = 0; r < p; ++r) {
        ASSERT_TRUE(std::equal(want.begin(), want.end(), all.begin() + static_cast<long>(count) * 4 * r));
      }
    }
  });
}

// If ranks share cores, one rank claims and reduces each slice, and every rank has the result.
TEST_P(LocalTeamTest, RanksThatShareCoresDoEachOthersParts) {
  const int p = GetParam();
  const SharedHost host(p);
  std::atomic<uint64_t> moved{0};
  run_ranks(p, [&](const ThreadRank& at) {
    LocalTeamSetup setup = host.setup(at);
    setup.shared_cores = true;
    LocalTeam team(std::move(setup));
    team.add_window(host.tensors);
    std::byte* own = host.tensors->region(at.rank);
    for (uint64_t round = 1; round <= 50; ++round) {
      const size_t count = 2000 + 100 * round;
      const Operation sum{CollectiveKind::kAllReduce, DataType::kFp32, ReduceOp::kSum, 0, count * 4, round};
      const auto data = test_tensor(DataType::kFp32, count, at.rank, static_cast<int>(round));
      std::copy(data.begin(), data.end(), own);
      shm_all_reduce(team, sum, own, count, 1);
      const auto want = reduced_tensor(DataType::kFp32, count, p, ReduceOp::kSum, static_cast<int>(round));
      ASSERT_TRUE(std::equal(want.begin(), want.end(), own)) << round;
    }
    moved += team.published();
  });
  // 2 (p - 1) / p N of each rank: no slice was left out, none counted twice.
  EXPECT_EQ(moved, 2 * 50 * (2000 + 100 * 51 / 2) * 4 * static_cast<uint64_t>(p - 1));
}

// Signal sets a flag and wakes the waiting threads. It does so at the end of its scope at the latest, so that
// no thread waits for a thread that has thrown.
struct Signal {
  std::atomic<bool>& flag;
  explicit Signal(std::atomic<bool>& on) : flag(on) {}
  ~Signal() { give(); }
  void give() {
    flag = true;
    flag.notify_all();
  }
};

// One rank has the core. It executes all parts of an all-reduce that the other rank has entered. It executes
// no part of a rank that has failed.
TEST(LocalTeamParts, OneRankAloneDoesThoseOfWhoTakesPart) {
  constexpr size_t kCount = 4800;
  constexpr uint64_t kRounds = 3;  // the first round of the team, and two all-reduces
  const SharedHost host(2);
  std::atomic<bool> done{false}, failed{false};
  const auto sum = [](uint64_t sequence) {
    return Operation{CollectiveKind::kAllReduce, DataType::kFp32, ReduceOp::kSum, 0, kCount * 4, sequence};
  };
  run_ranks(2, [&](const ThreadRank& at) {
    Signal mine(at.rank == 0 ? done : failed);
    LocalTeamSetup setup = host.setup(at);
    setup.shared_cores = true;
    LocalTeam team(std::move(setup));
    team.add_window(host.tensors);
    std::byte* own = host.tensors->region(at.rank);
    const auto data = test_tensor(DataType::kFp32, kCount, at.rank, 1);
    std::copy(data.begin(), data.end(), own);
    if (at.rank == 0) {
      shm_all_reduce(team, sum(1), own, kCount, 1);
      EXPECT_EQ(team.published(), kCount * 4) << "the other's half, and its own half of the result";
      mine.give();
      failed.wait(false);
      const std::vector<std::byte> before(own, own + kCount * 4);
      EXPECT_THROW(shm_all_reduce(team, sum(2), own, kCount, 1), CommError);
      EXPECT_FALSE(std::equal(before.begin(), before.begin() + kCount * 2, own)) << "its own part";
      EXPECT_TRUE(std::equal(before.begin() + kCount * 2, before.end(), own + kCount * 2))
          << "the part of the rank that has failed";
      return;
    }
    team.enter(sum(1), team.locate(own, kCount * 4), false);
    done.wait(false);
    const auto want = reduced_tensor(DataType::kFp32, kCount, 2, ReduceOp::kSum, 1);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), own));
    // The rank has entered the next all-reduce and then given up.
    EntryLine& entry = ControlLayout::block(host.control->region(1)).entry[kRounds % 2];
    entry.operation = sum(2);
    entry.where = team.locate(own, kCount * 4);
    post(entry, kRounds);
    team.liveness().fail(Failure{"gave up", 1, false});
  });
}

TEST(LocalTeamParts, WhoClaimedAPartAndDoesNotFinishItIsNamed) {
  const SharedHost host(2);
  std::atomic<bool> claimed{false}, ended{false};
  run_ranks(2, [&](const ThreadRank& at) {
    Signal mine(at.rank == 0 ? ended : claimed);
    LocalTeamSetup setup = host.setup(at);
    setup.timeout = std::chrono::seconds(3);  // of the first rounds, too
    LocalTeam team(std::move(setup));
    team.enter(Operation{}, kNowhere, false);
    if (at.rank == 1) {
      EXPECT_TRUE(team.claim(0) && !team.claim(0) && team.claim(1));
      team.post_part(1);
      mine.give();
      ended.wait(false);
      return;
    }
    claimed.wait(false);
    EXPECT_FALSE(team.claim(0) || team.claim(1));
    try {
      team.await_parts();
      ADD_FAILURE() << "part 0 was never finished";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.peer(), 1);
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 (node-a) entered"));
    }
  });
}

// Moved is the traffic that each of 4 ranks that share cores counts for one all-reduce of `bytes`.
struct Moved {
  size_t bytes;
  bool in_windows;
  uint64_t published, received, far;
};

void expect_moved(const SharedHost& host, const std::vector<int>& numa_of,
                  const std::vector<Moved>& classes) {
  run_ranks(4, [&](const ThreadRank& at) {
    LocalTeamSetup setup = host.setup(at);
    setup.shared_cores = true;
    setup.numa_of = numa_of;
    LocalTeam team(std::move(setup));
    team.add_window(host.tensors);
    uint64_t sequence = 0;
    for (const Moved& want : classes) {
      std::vector<std::byte> heap(want.bytes);
      std::byte* data = want.in_windows ? host.tensors->region(at.rank) : heap.data();
      std::fill_n(data, want.bytes, std::byte{0});
      for (int repetition = 0; repetition < 50; ++repetition) {
        const uint64_t published = team.published(), received = team.received(), far = team.far();
        const Operation sum{
            CollectiveKind::kAllReduce, DataType::kFp32, ReduceOp::kSum, 0, want.bytes, ++sequence};
        shm_all_reduce(team, sum, data, want.bytes / 4, 1);
        const std::string where = "rank " + std::to_string(at.rank) + ", " + std::to_string(want.bytes) +
                                  " bytes, repetition " + std::to_string(repetition);
        ASSERT_EQ(team.published() - published, want.published) << where;
        ASSERT_EQ(team.received() - received, want.received) << where;
        ASSERT_EQ(team.far() - far, want.far) << where;
      }
    }
  });
}

// Traffic belongs to the rank that owns a part, whichever rank executed the part. Sizes are multiples of 4
// cache lines.
TEST(LocalTeamParts, TrafficIsCountedForTheOwner) {
  constexpr size_t kLargest = (size_t{4} << 20) + 256;  // no rank executes the part of another
  const SharedHost host(4, kLargest);
  std::vector<Moved> classes;
  for (const size_t bytes : {size_t{512}, size_t{1024}})
    classes.push_back({bytes, true, 3 * bytes, 3 * bytes, 0});
  for (const size_t bytes :
       {size_t{1280}, size_t{16} << 10, size_t{64} << 10, size_t{1} << 20, size_t{4} << 20, kLargest})
    classes.push_back({bytes, true, bytes / 4 * 6, bytes / 4 * 6, 0});
  classes.push_back({16 << 10, false, 3 * (16 << 10), 3 * (16 << 10), 0});  // staged whole
  for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20})            // staged in slices
    classes.push_back({bytes, false, bytes / 4 * 6, bytes / 4 * 6, 0});
  expect_moved(host, {}, classes);
}

// Ranks 0 and 1 are bound to one NUMA node, ranks 2 and 3 to another.
TEST(LocalTeamParts, TrafficBetweenNumaNodesIsCountedForTheOwner) {
  const SharedHost host(4);
  expect_moved(
      host, {0, 0, 1, 1},
      {{size_t{64} << 10, true, 96 << 10, 96 << 10, 64 << 10},        // one level: 2 far ranks, both ways
       {size_t{1} << 20, true, 1536 << 10, 1536 << 10, 512 << 10}});  // two levels: 1 far rank, both ways
}

// Tests the two levels of ranks that are bound to NUMA nodes. The values are small integers, whose sums are
// exact in any order.
TEST(LocalTeamNuma, TwoLevelsOnOneMapping) {
  const int p = 4;
  const SharedHost host(p);
  run_ranks(p, [&](const ThreadRank& at) {
    LocalTeamSetup setup = host.setup(at);
    setup.numa_of = {0, 1, 0, 1};
    LocalTeam team(std::move(setup));
    team.add_window(host.tensors);
    auto* own = reinterpret_cast<float*>(host.tensors->region(at.rank));
    for (uint64_t round = 1; round <= 5; ++round) {
      const size_t count = 65'536 + 1000 * round;
      const Operation sum{CollectiveKind::kAllReduce, DataType::kFp32, ReduceOp::kSum, 0, count * 4, round};
      for (size_t i = 0; i < count; ++i)
        own[i] = static_cast<float>((i + round) % 1000 * static_cast<size_t>(at.rank + 1));
      shm_all_reduce(team, sum, own, count, 2);
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(own[i], static_cast<float>((i + round) % 1000 * 5)) << round << " " << i;
    }
  });
}

TEST_P(LocalTeamTest, MessagesOnOneMapping) {
  const int p = GetParam();
  const SharedHost host(p);
  run_ranks(p, [&](const ThreadRank& at) {
    LocalTeam team(host.setup(at));
    LocalMessages messages(team, host.rings, 1 << 20);
    const int next = (at.rank + 1) % p, previous = (at.rank + p - 1) % p;
    for (uint32_t i = 0; i < 50; ++i) {
      const size_t count = i % 10 == 9 ? 200'000 : i * 7;
      const auto out = test_tensor(DataType::kFp32, count, at.rank, static_cast<int>(i));
      std::vector<std::byte> in(out.size());
      messages.send(out.data(), out.size(), next, i, team.policy());
      messages.recv(in.data(), in.size(), previous, i, team.policy());
      ASSERT_EQ(in, test_tensor(DataType::kFp32, count, previous, static_cast<int>(i))) << i;
    }
    // No rank may leave while a neighbor still reads its ring.
    team.enter(Operation{}, kNowhere, false);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalTeamTest, testing::Values(2, 3, 4));

}  // namespace
}  // namespace starling
