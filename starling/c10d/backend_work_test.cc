// Tests works, futures, errors and the end of a backend, and the backend behind a ProcessGroup.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <atomic>
#include <functional>
#include <future>
#include <vector>

#include "starling/base/error.h"
#include "starling/c10d/backend.h"
#include "starling/c10d/backend_test_ranks.h"
#include "starling/c10d/process_group.h"
#include "starling/testing/error_of.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

void with_backends(int ranks, const std::function<void(StarlingBackend&)>& body) {
  run_ranks(ranks, [&](const ThreadRank& at) {
    const auto backend = c10::make_intrusive<StarlingBackend>(join_group(*at.store, at.rank, at.size));
    body(*backend);
  });
}

TEST(WorkTest, FutureGivesTheOutputs) {
  with_backends(2, [](StarlingBackend& backend) {
    Tensors tensors{at::full({1000}, backend.getRank() + 1.0)};
    const auto work = backend.allreduce(tensors, {});
    std::promise<double> chained;
    work->getFuture()->addCallback([&](c10::ivalue::Future& future) {
      chained.set_value(future.value().toTensorVector().at(0).sum().item<double>());
    });
    EXPECT_EQ(chained.get_future().get(), 3000);
    work->wait();
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
    EXPECT_TRUE(work->result().at(0).is_same(tensors[0]));
    EXPECT_TRUE(work->getFuture()->completed());  // also if requested after the end
    EXPECT_EQ(work->getFuture()->value().toTensorVector().size(), 1);
  });
}

// Rank 1 begins when rank 0 has added all callbacks. They run one after another, in the order of the calls.
TEST(WorkTest, CallbacksOfCollectivesKeepTheOrder) {
  constexpr int kCalls = 50;
  std::promise<void> added;
  with_backends(2, [&](StarlingBackend& backend) {
    std::vector<Tensors> tensors;
    tensors.reserve(kCalls);
    for (int i = 0; i < kCalls; ++i) tensors.push_back({at::ones({3})});
    std::vector<int> order;  // without a lock
    std::promise<void> all;
    if (backend.getRank() == 1) added.get_future().wait();
    c10::intrusive_ptr<c10d::Work> last;
    for (int i = 0; i < kCalls; ++i) {
      last = backend.allreduce(tensors[i], {});
      if (backend.getRank() == 1) continue;
      last->getFuture()->addCallback([&, i](c10::ivalue::Future&) {
        order.push_back(i);
        if (order.size() == kCalls) all.set_value();
      });
    }
    if (backend.getRank() == 1) {
      last->wait();
      return;
    }
    added.set_value();
    all.get_future().wait();
    for (int i = 0; i < kCalls; ++i) EXPECT_EQ(order[i], i);
  });
}

TEST(WorkTest, WaitEndsByItsTimeoutAndTheOperationGoesOn) {
  std::promise<void> waited;
  auto wait_over = waited.get_future().share();
  with_backends(2, [&](StarlingBackend& backend) {
    Tensors tensors{at::ones({10})};
    if (backend.getRank() == 1) {
      wait_over.wait();
      backend.allreduce(tensors, {})->wait();
    } else {
      const auto work = backend.allreduce(tensors, {});
      const std::string message = error_of<TimeoutError>([&] { work->wait(std::chrono::milliseconds(20)); });
      waited.set_value();
      EXPECT_THAT(message, AllOf(HasSubstr("starling:all_reduce (operation 1)"), HasSubstr("20 ms")));
      work->wait();
    }
    EXPECT_TRUE(at::equal(tensors[0], at::full({10}, 2.0)));
  });
}

TEST(WorkTest, FaultsComeOutOfWaitAndOfTheFuture) {
  with_backends(2, [](StarlingBackend& backend) {
    Tensors tensors{at::ones({backend.getRank() + 1})};  // shapes that differ
    const auto work = backend.allreduce(tensors, {});
    EXPECT_NE(error_of<CommError>([&] { work->wait(); }), "");
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    EXPECT_TRUE(work->getFuture()->hasError());
    EXPECT_NE(error_of<CommError>([&] { std::rethrow_exception(work->exception()); }), "");
  });
}

TEST(WorkTest, ALateRankIsATimeoutErrorOutOfWait) {
  std::promise<void> timed_out;
  auto over = timed_out.get_future().share();
  run_ranks(2, [&](const ThreadRank& at) {
    const auto backend = c10::make_intrusive<StarlingBackend>(
        join_group(*at.store, at.rank, at.size, std::chrono::seconds(3)));
    if (at.rank == 1) return over.wait();
    EXPECT_THAT(error_of<TimeoutError>([&] { backend->barrier({})->wait(); }), HasSubstr("rank 1"));
    timed_out.set_value();
  });
}

TEST(BackendEndTest, ABackendThatIsDroppedDoesNotHang) {
  std::atomic<int> failed{0};
  run_ranks(2, [&](const ThreadRank& at) {
    auto backend = c10::make_intrusive<StarlingBackend>(join_group(*at.store, at.rank, at.size));
    if (at.rank == 1) {
      // The peer abandons an operation that it has begun, and this rank is told.
      if (!error_of<CommError>([&] { backend->barrier({})->wait(); }).empty()) ++failed;
      return;
    }
    Tensors never{at::ones({3})};
    const auto receive = backend->recv(never, 1, 7);
    const auto second = backend->recv(never, 1, 8);
    backend.reset();
    EXPECT_NE(error_of<CommError>([&] { receive->wait(); }), "");
    EXPECT_NE(error_of<CommError>([&] { second->wait(); }), "");
  });
  EXPECT_EQ(failed, 1);
}

TEST(BackendEndTest, ACallbackMayDropTheBackend) {
  auto backend = c10::make_intrusive<StarlingBackend>(std::shared_ptr<Group>(make_single_group()));
  std::promise<void> dropped;
  auto over = dropped.get_future();
  Tensors tensors{at::ones({3})};
  auto work = backend->allreduce(tensors, {});
  work->getFuture()->addCallback([&, mine = std::move(backend)](c10::ivalue::Future&) mutable {
    mine.reset();
    dropped.set_value();
  });
  over.wait();
  EXPECT_TRUE(work->isSuccess());
}

TEST(BackendEndTest, CallsAfterShutdownAreRefused) {
  const auto backend = c10::make_intrusive<StarlingBackend>(std::shared_ptr<Group>(make_single_group()));
  backend->shutdown();
  for (const bool async : {false, true}) {
    EXPECT_THAT(error_of<CommError>([&] { backend->barrier(options_for<c10d::BarrierOptions>(async)); }),
                HasSubstr("has been shut down"));
  }
}

TEST(BackendErrorTest, ArgumentsAreRefusedWithTheirNames) {
  const auto owner = c10::make_intrusive<StarlingBackend>(std::shared_ptr<Group>(make_single_group()));
  StarlingBackend& backend = *owner;
  const auto all_reduce = [&](Tensors tensors, const c10d::ReduceOp& op = c10d::ReduceOp::SUM) {
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    return error_of([&] { backend.allreduce(tensors, options); });
  };
  EXPECT_THAT(all_reduce({at::zeros({2}, at::kBool)}, c10d::ReduceOp::AVG), HasSubstr("avg of Bool"));
  EXPECT_THAT(all_reduce({at::zeros({2}, at::kUInt16)}), HasSubstr("UInt16"));
  EXPECT_THAT(all_reduce({at::zeros({2}, at::kComplexFloat)}), HasSubstr("ComplexFloat"));
  EXPECT_THAT(all_reduce({at::zeros({2}).to_sparse()}, c10d::ReduceOp::MAX), HasSubstr("sparse"));
  Tensors sparse{at::zeros({2}).to_sparse()};
  EXPECT_THAT(error_of([&] { backend.broadcast(sparse, {}); }), HasSubstr("to_dense()"));
  EXPECT_THAT(all_reduce({at::zeros({2}), at::zeros({2})}), HasSubstr("2 tensors"));
  EXPECT_THAT(all_reduce({at::empty({2}, at::kMeta)}), HasSubstr("meta"));
  EXPECT_THAT(all_reduce({at::zeros({2}, at::kInt)}, c10d::makePreMulSum(2.0)),
              HasSubstr("premultiplied sum of Int"));
  EXPECT_THAT(all_reduce({at::zeros({2})}, c10d::ReduceOp::BXOR), HasSubstr("bitwise xor of Float"));
  Tensors one{at::zeros({2})};
  EXPECT_THAT(error_of([&] { backend.send(one, 3, 0); }),
              HasSubstr("rank 3 does not exist in a group of 1 ranks"));
  at::Tensor large = at::zeros({5});
  EXPECT_THAT(error_of([&] { backend.all_gather_single(large, one[0], {}); }), HasSubstr("5 and 2 Float"));
  std::vector<int64_t> wrong{4};
  EXPECT_THAT(error_of([&] { backend.all_to_all_single(large, large, wrong, wrong, {}); }),
              HasSubstr("[4] of 5 rows"));
  EXPECT_THAT(error_of([&] { backend.allocateTensor(4, at::TensorOptions(at::kCUDA)); }), HasSubstr("NCCL"));
}

// libtorch code uses the backend in this way: its calls pass torch's dispatcher.
TEST(ProcessGroupTest, OperationsPassTheDispatcher) {
  run_ranks(3, [](const ThreadRank& at) {
    const auto group = make_process_group(join_group(*at.store, at.rank, at.size));
    EXPECT_EQ(group->getRank(), at.rank);
    EXPECT_EQ(group->getSize(), 3);
    EXPECT_EQ(group->getBackend(c10::DeviceType::CPU)->getBackendName(), "starling");
    Tensors tensors{values(at.rank, 50, at::kFloat)};
    for (const bool async : {false, true}) {
      Tensors x{tensors[0].clone()};
      group->allreduce(x, options_for<c10d::AllreduceOptions>(async))->wait();
      EXPECT_TRUE(at::equal(x[0], reduced(3, 50, at::kFloat, c10d::ReduceOp::SUM)));
    }
    std::vector<Tensors> all{{at::zeros({50}), at::zeros({50}), at::zeros({50})}};
    group->allgather(all, tensors)->wait();
    for (int r = 0; r < 3; ++r) EXPECT_TRUE(at::equal(all[0][r], values(r, 50, at::kFloat)));
    at::Tensor flat = at::zeros({150}), part = at::zeros({50});
    group->all_gather_single(flat, tensors[0])->wait();
    EXPECT_TRUE(at::equal(flat, at::cat(all[0])));
    group->reduce_scatter_single(part, flat)->wait();
    EXPECT_TRUE(at::equal(part, all[0][at.rank] * 3));
    std::vector<int64_t> even;
    at::Tensor exchanged = at::zeros({150});
    group->all_to_all_single(exchanged, flat, even, even)->wait();
    EXPECT_TRUE(at::equal(exchanged, all[0][at.rank].repeat({3})));
    group->barrier()->wait();
    Tensors out{at::full({4}, static_cast<double>(at.rank))}, in{at::zeros({4})};
    const auto sent = group->send(out, (at.rank + 1) % 3, 5);
    group->recv(in, (at.rank + 2) % 3, 5)->wait();
    sent->wait();
    EXPECT_TRUE(at::equal(in[0], at::full({4}, static_cast<double>((at.rank + 2) % 3))));
  });
}

TEST(ProcessGroupTest, LibtorchsCoalescedBroadcast) {
  run_ranks(2, [](const ThreadRank& at) {
    const auto group = make_process_group(join_group(*at.store, at.rank, at.size));
    Tensors tensors;
    for (int i = 0; i < 6; ++i) tensors.push_back(values(at.rank, 10 + i, at::kDouble, i));
    c10d::broadcast_coalesced(group, tensors, 200, 1);
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(at::equal(tensors[i], values(1, 10 + i, at::kDouble, i)));
  });
}

}  // namespace
}  // namespace starling
