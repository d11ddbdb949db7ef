// Tests backends that meet through a c10d store, and the groups made from them: splits, merges and smaller
// groups. Also tests calls that find the first sender or a missing rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/c10d/backend.h"
#include "starling/c10d/backend_test_ranks.h"
#include "starling/testing/error_of.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Tensors = std::vector<at::Tensor>;

// Runs `body` on ranks that are threads and share a HashStore.
void with_backends(int ranks,
                   const std::function<void(StarlingBackend&, const c10::intrusive_ptr<c10d::Store>&)>& body,
                   std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(ranks, [&](const ThreadRank& at) {
    RendezvousOptions rendezvous;
    rendezvous.group.timeout = timeout;
    body(*StarlingBackend::make(store, at.rank, at.size, rendezvous), store);
  });
}

// Returns the sum over the backend's ranks of 10^rank, which tells the ranks that took part.
double digits(c10d::Backend& backend, double mine) {
  Tensors tensors{at::full({4}, mine, at::kDouble)};
  backend.allreduce(tensors, {})->wait();
  return tensors[0][3].item<double>();
}

TEST(RendezvousTest, OneStoreServesSeveralGroups) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(3, [&](const ThreadRank& at) {
    for (int round = 0; round < 3; ++round) {
      const auto backend = StarlingBackend::make(store, at.rank, at.size, {});
      EXPECT_EQ(backend->getRank(), at.rank);
      EXPECT_EQ(digits(*backend, 1), 3);
    }
  });
}

TEST(RendezvousTest, ARankThatDoesNotComeIsNamed) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  RendezvousOptions rendezvous;
  rendezvous.group.timeout = std::chrono::milliseconds(200);
  EXPECT_THAT(error_of<TimeoutError>([&] { StarlingBackend::make(store, 0, 2, rendezvous); }),
              AllOf(HasSubstr("rank 1 did not join"), HasSubstr("200 ms")));
}

TEST(BackendGroupsTest, SplitsKeepTheOrderThatIsGiven) {
  with_backends(4, [](StarlingBackend& backend, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto options = backend.getBackendOptions()->clone();
    options->group_name = "pair";
    const auto own = c10::make_intrusive<c10d::PrefixStore>("pair", store);
    const int me = backend.getRank();
    const auto child = backend.split(own, {3, 1}, options);
    ASSERT_EQ(child.defined(), me == 1 || me == 3);
    if (child) {
      EXPECT_EQ(child->getRank(), me == 3 ? 0 : 1);
      EXPECT_EQ(digits(*child, me), 4);
      EXPECT_EQ(child->getBackendOptions()->group_name, "pair");
      // An error names the ranks of the job that it concerns.
      Tensors tensors{at::ones({me})};
      EXPECT_THAT(error_of<CommError>([&] { child->allreduce(tensors, {})->wait(); }),
                  HasSubstr("[group 'pair' of the job's ranks 3, 1]"));
      EXPECT_EQ(child->getError(), c10d::ErrorType::COMM_ERROR);
    }
    EXPECT_EQ(digits(backend, 1), 4);  // the parent continues
    EXPECT_EQ(backend.getError(), c10d::ErrorType::SUCCESS);
  });
}

TEST(BackendGroupsTest, MergeAndShrink) {
  with_backends(3, [](StarlingBackend& backend, const c10::intrusive_ptr<c10d::Store>& store) {
    const int me = backend.getRank();
    const auto merged = backend.merge(c10::make_intrusive<c10d::PrefixStore>("merged", store),
                                      backend.getBackendOptions(), 2 - me, 3);
    EXPECT_EQ(merged->getRank(), 2 - me);
    EXPECT_EQ(digits(*merged, 1), 3);
    EXPECT_TRUE(backend.supportsShrinking());
    if (me == 1) {
      EXPECT_THAT(error_of([&] { backend.shrink({1}, 0, {}); }),
                  HasSubstr("rank 1 is among the excluded ranks"));
      return;
    }
    const auto left = backend.shrink({1}, 1, {});
    EXPECT_EQ(left->getRank(), me / 2);
    EXPECT_EQ(digits(*left, 1), 2);
    EXPECT_THAT(error_of<CommError>([&] { backend.barrier({})->wait(); }), HasSubstr("abort()"));
  });
}

TEST(BackendGroupsTest, AMonitoredBarrierNamesWhoIsMissing) {
  std::promise<void> found;
  auto over = found.get_future().share();
  with_backends(4, [&](StarlingBackend& backend, const auto&) {
    c10d::BarrierOptions options;
    for (int i = 0; i < 3; ++i) backend.monitoredBarrier(options, i == 1);
    options.timeout = std::chrono::seconds(3);  // rank 2 must arrive within it
    const int me = backend.getRank();
    if (me == 1 || me == 3) return over.wait();
    const std::string message = error_of<CommError>([&] { backend.monitoredBarrier(options, true); });
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 ("), HasSubstr("rank 3 ("), Not(HasSubstr("rank 2 (")),
                               HasSubstr("did not enter monitored barrier #4"),
                               HasSubstr("Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms")));
    if (me == 0) found.set_value();
  });
}

TEST(BackendGroupsTest, TakesMessagesOfAnyRank) {
  with_backends(4, [](StarlingBackend& backend, const auto&) {
    const int p = backend.getSize(), me = backend.getRank();
    for (const int64_t count : {1, 60000}) {
      if (me != 0) {
        Tensors mine{at::full({count, 2}, me, at::kDouble)};
        backend.send(mine, 0, 7)->wait();
      }
      int sum = 0;
      for (int i = 1; me == 0 && i < p; ++i) {
        Tensors got{at::zeros({2, count}, at::kDouble).t()};
        const auto work = backend.recvAnysource(got, 7);
        work->wait();
        EXPECT_TRUE(at::equal(got[0], at::full({count, 2}, work->sourceRank(), at::kDouble)));
        sum += work->sourceRank();
      }
      EXPECT_EQ(sum, me == 0 ? 6 : 0);
      backend.barrier({})->wait();
    }
  });
}

// The search begins after the last sender, so a rank that always has a message does not starve other ranks.
TEST(BackendGroupsTest, TakesMessagesOfAnyRankInTurn) {
  with_backends(3, [](StarlingBackend& backend, const auto&) {
    constexpr int kMessages = 3;
    const int me = backend.getRank();
    for (int i = 0; me != 0 && i < kMessages; ++i) {
      Tensors mine{at::full({4}, 10 * me + i, at::kDouble)};
      backend.send(mine, 0, 7)->wait();
    }
    backend.barrier({})->wait();  // all messages lie at rank 0
    std::vector<int> sources;
    for (int i = 0; me == 0 && i < 2 * kMessages; ++i) {
      Tensors got{at::zeros({4}, at::kDouble)};
      const auto work = backend.recvAnysource(got, 7);
      work->wait();
      sources.push_back(work->sourceRank());
      EXPECT_TRUE(at::equal(got[0], at::full({4}, 10 * work->sourceRank() + i / 2, at::kDouble)));
    }
    if (me == 0) {
      EXPECT_EQ(sources, (std::vector<int>{1, 2, 1, 2, 1, 2}));
    }
    backend.barrier({})->wait();
  });
}

TEST(BackendGroupsTest, CoalescedCallsAreOneWork) {
  with_backends(3, [](StarlingBackend& backend, const auto&) {
    const int p = backend.getSize(), me = backend.getRank();
    Tensors out{at::full({5}, me)}, in{at::zeros({5}, at::kLong)}, sum{at::ones({9})};
    backend.startCoalescing();
    backend.recv(in, (me + 1) % p, 0);
    backend.send(out, (me + p - 1) % p, 0);
    backend.allreduce(sum, options_for<c10d::AllreduceOptions>(false));
    const auto work = backend.endCoalescing();
    work->wait();
    EXPECT_TRUE(at::equal(in[0], at::full({5}, (me + 1) % p)));
    EXPECT_TRUE(at::equal(sum[0], at::full({9}, 3.0)));
    EXPECT_EQ(work->result().size(), 3u);
    EXPECT_THROW(backend.endCoalescing(), Error);
    backend.startCoalescing();
    EXPECT_TRUE(backend.endCoalescing()->wait());
  });
}

// A rank is lost, and the remaining ranks continue without it in another order. Then it comes back.
TEST(BackendGroupsTest, ReconfiguredGroups) {
  const c10::intrusive_ptr<c10d::Store> board = c10::make_intrusive<c10d::HashStore>();
  run_ranks(3, [&](const ThreadRank& at) {
    RendezvousOptions rendezvous;
    rendezvous.group.timeout = std::chrono::seconds(20);
    const auto backend = StarlingBackend::make_reconfigurable(at.rank, at.size, rendezvous);
    EXPECT_FALSE(backend->isInitialized());
    EXPECT_THAT(error_of<CommError>([&] { backend->barrier({}); }), HasSubstr("call reconfigure()"));
    board->set("handle" + std::to_string(at.rank), backend->get_reconfigure_handle());
    std::vector<std::string> all;
    for (int r = 0; r < 3; ++r) all.push_back(board->get_to_str("handle" + std::to_string(r)));
    const auto use = [&](int64_t uuid, std::vector<std::string> handles) {
      c10d::ReconfigureOptions options;
      options.uuid = uuid;
      options.handles = std::move(handles);
      backend->reconfigure(options)->wait();
      return digits(*backend, 1);
    };
    EXPECT_EQ(use(1, all), 3);
    EXPECT_EQ(backend->getRank(), at.rank);
    if (at.rank != 1) {
      EXPECT_EQ(use(2, {all[2], all[0]}), 2);
      EXPECT_EQ(backend->getRank(), at.rank == 2 ? 0 : 1);
      EXPECT_EQ(backend->getSize(), 2);
    }
    EXPECT_EQ(use(3, {all[1], all[2], all[0]}), 3);
    EXPECT_THAT(error_of([&] { use(4, {"elsewhere host"}); }), HasSubstr("not among those"));
  });
}

// Uses several groups at once, each by a thread of its own, and one group by several threads with equal
// calls.
TEST(BackendGroupsTest, SeveralGroupsAndThreads) {
  with_backends(2, [](StarlingBackend& backend, const c10::intrusive_ptr<c10d::Store>& store) {
    std::vector<c10::intrusive_ptr<c10d::Backend>> groups;
    for (int g = 0; g < 3; ++g) {
      groups.push_back(backend.split(
          c10::make_intrusive<c10d::PrefixStore>("group" + std::to_string(g), store), {0, 1}, {}));
    }
    std::vector<std::future<bool>> threads;
    const auto spin = [](c10d::Backend& on, double mine, double want) {
      bool right = true;
      for (int i = 0; i < 50; ++i) right = right && digits(on, mine) == want;
      return right;
    };
    for (int g = 0; g < 3; ++g) {
      threads.push_back(std::async(std::launch::async, [&, g] { return spin(*groups[g], g, 2 * g); }));
    }
    for (int t = 0; t < 3; ++t) {
      threads.push_back(std::async(std::launch::async, [&] { return spin(backend, 1, 2); }));
    }
    for (auto& thread : threads) EXPECT_TRUE(thread.get());
  });
}

TEST(BackendGroupsTest, TimeoutsAndResultsOfWorks) {
  std::promise<void> waited;
  auto over = waited.get_future().share();
  with_backends(2, [&](StarlingBackend& backend, const auto&) {
    backend.setTimeout(std::chrono::milliseconds(20));
    Tensors tensors{at::ones({2})};
    if (backend.getRank() == 0) {
      const auto work = backend.allreduce(tensors, {});
      EXPECT_THAT(error_of<TimeoutError>([&] { work->wait(); }), HasSubstr("20 ms"));
      waited.set_value();
      work->wait(std::chrono::seconds(20));
      EXPECT_EQ(work->getFutureResult()->value().toInt(), static_cast<int64_t>(c10d::WorkResult::SUCCESS));
      return;
    }
    over.wait();
    backend.allreduce(tensors, {})->wait(std::chrono::seconds(20));
  });
}

}  // namespace
}  // namespace starling
