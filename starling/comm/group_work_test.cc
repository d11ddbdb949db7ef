// Tests started operations: they progress without further calls, keep their order, and end with the group.
#include <gmock/gmock.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/collective/collective_test_values.h"
#include "starling/testing/error_of.h"
#include "starling/testing/memory_connections.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using testing::HasSubstr;

// The parameter says whether the ranks share memory (true) or are connected (false).
class GroupWork : public testing::TestWithParam<bool> {
 protected:
  void on_all(int size, const std::function<void(Group&)>& body) {
    MemoryConnections connections;
    run_ranks(size, [&](const ThreadRank& at) { body(*joined(at, connections)); });
  }

  static std::unique_ptr<Group> joined(const ThreadRank& at, MemoryConnections& connections,
                                       std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    GroupSetup setup;
    setup.rank = at.rank;
    setup.size = at.size;
    setup.options.timeout = timeout;
    setup.options.shared_memory = GetParam();
    setup.connect = [&connections](const ConnectionSetup& m) { return connections.connect(m); };
    return make_group(*at.store, setup);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, GroupWork, testing::Bool(),
                         [](const auto& info) { return info.param ? "SharedMemory" : "Connections"; });

TEST_P(GroupWork, EveryCollectiveGivesTheResultOfItsBlockingForm) {
  on_all(3, [](Group& group) {
    const int p = group.size(), me = group.rank();
    constexpr size_t kCount = 5'000;
    auto sum = test_tensor(DataType::kFp32, kCount, me, 1);
    auto root = test_tensor(DataType::kFp32, kCount, me, 2);
    const auto whole = test_tensor(DataType::kFp32, kCount * p, me, 3);
    const auto own = test_tensor(DataType::kFp32, kCount, me, 4);
    std::vector<std::byte> part(4 * kCount), all(4 * kCount * p), turned(4 * kCount * p);
    std::vector<WorkPtr> works;
    works.push_back(group.all_reduce(sum.data(), kCount, DataType::kFp32, ReduceOp::kSum));
    works.push_back(group.broadcast(root.data(), kCount, DataType::kFp32, 1));
    works.push_back(group.barrier());
    works.push_back(group.reduce_scatter(whole.data(), part.data(), kCount, DataType::kFp32, ReduceOp::kSum));
    works.push_back(group.all_gather(own.data(), all.data(), kCount, DataType::kFp32));
    {
      const std::vector<size_t> counts(p, kCount);  // the group has copied the counts when the call returns
      works.push_back(group.all_to_all(whole.data(), counts, turned.data(), counts, DataType::kFp32));
    }
    for (const WorkPtr& work : works) {
      EXPECT_NO_THROW(work->wait());
      EXPECT_TRUE(work->is_completed());
      EXPECT_EQ(work->error(), nullptr);
    }
    EXPECT_EQ(sum, reduced_tensor(DataType::kFp32, kCount, p, ReduceOp::kSum, 1));
    EXPECT_EQ(root, test_tensor(DataType::kFp32, kCount, 1, 2));
    EXPECT_EQ(part, reduced_tensor(DataType::kFp32, kCount, p, ReduceOp::kSum, 3, kCount * me));
    std::vector<std::byte> want_all, want_turned;
    for (int r = 0; r < p; ++r) {
      const auto theirs = test_tensor(DataType::kFp32, kCount, r, 4);
      want_all.insert(want_all.end(), theirs.begin(), theirs.end());
      const auto block = test_tensor(DataType::kFp32, kCount, r, 3, kCount * me);
      want_turned.insert(want_turned.end(), block.begin(), block.end());
    }
    EXPECT_EQ(all, want_all);
    EXPECT_EQ(turned, want_turned);
  });
}

// Rank 0 starts an operation and then only polls it. Rank 1 starts its operation after rank 0's call has
// returned. So the call cannot have executed the operation.
TEST_P(GroupWork, AStartedOperationProgressesAlone) {
  MemoryConnections connections;
  std::promise<void> started;
  run_ranks(2, [&](const ThreadRank& at) {
    const auto group = joined(at, connections);
    constexpr size_t kCount = 1'000'000;
    auto data = test_tensor(DataType::kFp32, kCount, at.rank, 1);
    if (at.rank == 1) started.get_future().wait();
    const WorkPtr work = group->all_reduce(data.data(), kCount, DataType::kFp32, ReduceOp::kSum);
    if (at.rank == 0) {
      EXPECT_FALSE(work->is_completed());
      started.set_value();
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!work->is_completed() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    ASSERT_TRUE(work->is_completed());
    EXPECT_EQ(data, reduced_tensor(DataType::kFp32, kCount, 2, ReduceOp::kSum, 1));
    barrier(*group);
  });
}

TEST_P(GroupWork, ABlockingCallComesAfterTheStartedOnes) {
  on_all(2, [](Group& group) {
    for (int i = 0; i < 200; ++i) {
      double value = 1;
      const WorkPtr doubled = group.all_reduce(&value, 1, DataType::kFp64, ReduceOp::kSum);
      const WorkPtr again = group.all_reduce(&value, 1, DataType::kFp64, ReduceOp::kSum);
      all_reduce(group, &value, 1, DataType::kFp64, ReduceOp::kSum);
      ASSERT_TRUE(doubled->is_completed() && again->is_completed());
      ASSERT_EQ(value, 8);
    }
  });
}

TEST_P(GroupWork, ABlockingMessageComesAfterTheStartedOnes) {
  on_all(2, [](Group& group) {
    const int peer = 1 - group.rank();
    for (int32_t i = 0; i < 50; ++i) {
      const int32_t first = 2 * i, second = 2 * i + 1;
      int32_t got[2] = {-1, -1};
      const WorkPtr receive = group.recv(&got[0], sizeof(int32_t), peer, 9);
      const WorkPtr send_first = group.send(&first, sizeof(first), peer, 9);
      send(group, &second, sizeof(second), peer, 9);
      recv(group, &got[1], sizeof(int32_t), peer, 9);
      receive->wait();
      send_first->wait();
      ASSERT_EQ(got[0], first);
      ASSERT_EQ(got[1], second);
    }
  });
}

// The Work of the first operation is dropped at once.
TEST_P(GroupWork, AnOperationWhoseWorkIsDroppedGoesOn) {
  on_all(2, [](Group& group) {
    double value = 1;
    (void)group.all_reduce(&value, 1, DataType::kFp64, ReduceOp::kSum);
    barrier(group);
    EXPECT_EQ(value, 2);
  });
}

TEST_P(GroupWork, AbortEndsAllStartedOperations) {
  MemoryConnections connections;
  std::promise<void> aborted;
  run_ranks(2, [&](const ThreadRank& at) {
    const auto group = joined(at, connections);
    if (at.rank == 1) return aborted.get_future().wait();
    double value = 1;
    int32_t word = 0;
    std::vector<WorkPtr> works;
    works.reserve(4);
    for (int i = 0; i < 3; ++i)
      works.push_back(group->all_reduce(&value, 1, DataType::kFp64, ReduceOp::kSum));
    works.push_back(group->recv(&word, sizeof(word), 1, 3));
    group->abort("the test ends it");
    for (const WorkPtr& work : works)
      EXPECT_THAT(error_of<CommError>([&] { work->wait(); }), HasSubstr("the test ends it"));
    aborted.set_value();
  });
}

// Receives are started before the sends, for tags in another order than that of the sends.
TEST_P(GroupWork, MessagesAreMatchedByTag) {
  on_all(3, [](Group& group) {
    const int p = group.size(), me = group.rank();
    constexpr uint32_t kTags = 6;
    std::vector<std::vector<std::byte>> got, sent;
    std::vector<WorkPtr> works;
    got.reserve(p * kTags);
    sent.reserve(p * kTags);
    for (uint32_t tag = 0; tag < kTags; ++tag) {
      for (int peer = 0; peer < p; ++peer) {
        if (peer == me) continue;
        got.emplace_back(400'000);
        works.push_back(group.recv(got.back().data(), got.back().size(), peer, tag));
      }
    }
    barrier(group);  // collectives are independent of the receives
    for (uint32_t tag = kTags; tag-- > 0;) {
      // The receives of the first tag, which were started first, do not hold up those of the last tag.
      for (int i = 0; tag == 0 && i < p - 1; ++i) works[(kTags - 1) * static_cast<size_t>(p - 1) + i]->wait();
      for (int peer = 0; peer < p; ++peer) {
        if (peer == me) continue;
        sent.push_back(test_tensor(DataType::kUint8, 400'000, me, static_cast<int>(tag)));
        works.push_back(group.send(sent.back().data(), sent.back().size(), peer, tag));
      }
    }
    for (const WorkPtr& work : works) work->wait();
    size_t next = 0;
    for (uint32_t tag = 0; tag < kTags; ++tag) {
      for (int peer = 0; peer < p; ++peer) {
        if (peer == me) continue;
        ASSERT_EQ(got[next++], test_tensor(DataType::kUint8, 400'000, peer, static_cast<int>(tag))) << tag;
      }
    }
  });
}

TEST_P(GroupWork, AWrongArgumentThrowsFromTheCall) {
  on_all(2, [](Group& group) {
    int32_t word = 0;
    EXPECT_THAT(error_of<CommError>([&] { (void)group.broadcast(&word, 1, DataType::kInt32, 2); }),
                HasSubstr("rank 2 does not exist in a group of 2 ranks"));
    EXPECT_THAT(error_of<CommError>([&] { (void)group.send(&word, 4, group.rank(), 1); }),
                HasSubstr("cannot send to itself"));
    EXPECT_THAT(
        error_of<CommError>([&] { (void)group.all_reduce(&word, 1, DataType::kFp32, ReduceOp::kBitOr); }),
        HasSubstr("are for integers"));
    barrier(group);
  });
}

TEST_P(GroupWork, AFaultComesOutOfWait) {
  MemoryConnections connections;
  run_ranks(2, [&](const ThreadRank& at) {
    const auto group = joined(at, connections, std::chrono::milliseconds(at.rank == 0 ? 3'000 : 60'000));
    int32_t word = 0;
    if (at.rank == 1) {
      EXPECT_ANY_THROW(barrier(*group));  // it waits until rank 0 has given up
      return;
    }
    const WorkPtr late = group->recv(&word, sizeof(word), 1, 5);
    EXPECT_FALSE(late->is_completed());
    EXPECT_EQ(late->error(), nullptr);
    EXPECT_THAT(error_of<TimeoutError>([&] { late->wait(); }), HasSubstr("rank 1"));
    EXPECT_TRUE(late->is_completed());
    EXPECT_NE(late->error(), nullptr);
    EXPECT_THROW(late->wait(), TimeoutError);  // a second wait throws the error again
  });
}

TEST_P(GroupWork, TheEndOfTheGroupEndsItsOperations) {
  MemoryConnections connections;
  std::promise<void> given_up;
  run_ranks(2, [&](const ThreadRank& at) {
    auto group = joined(at, connections);
    if (at.rank == 1) {
      given_up.get_future().wait();
      return;
    }
    int32_t word = 0;
    const WorkPtr first = group->barrier(), second = group->barrier();
    const WorkPtr message = group->recv(&word, sizeof(word), 1, 5);
    group.reset();
    for (const WorkPtr& work : {first, second, message}) {
      EXPECT_TRUE(work->is_completed());
      EXPECT_THROW(work->wait(), CommError);
    }
    given_up.set_value();
  });
}

}  // namespace
}  // namespace starling
