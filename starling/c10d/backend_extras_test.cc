// Tests one-sided windows between the ranks of a host, hooks, durations, and the wait for all operations.
// Also tests what the backend does not offer, and backends for other devices beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/c10d/backend.h"
#include "starling/c10d/backend_test_ranks.h"
#include "starling/c10d/device_backends.h"
#include "starling/c10d/process_group.h"
#include "starling/testing/error_of.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using std::chrono::milliseconds;

void with_extras(int ranks, const std::function<void(StarlingBackend&)>& body) {
  run_ranks(ranks, [&](const ThreadRank& at) {
    const auto backend = c10::make_intrusive<StarlingBackend>(join_group(*at.store, at.rank, at.size));
    body(*backend);
  });
}

float in_ms(std::chrono::duration<float> time) {
  return time.count() * 1e3f;
}

at::Tensor table_of(int rank) {
  return values(rank, 20, at::kDouble, rank).view({4, 5});
}

TEST(OneSidedTest, PutsAndSignals) {
  with_extras(3, [](StarlingBackend& backend) {
    const int p = 3, me = backend.getRank(), next = (me + 1) % p, previous = (me + 2) % p;
    ASSERT_TRUE(backend.supportsWindow());
    // The tensor is a view with an offset that differs between the ranks. It stays a view of its storage.
    const at::Tensor whole = at::zeros({30 + me}, at::kDouble);
    const at::Tensor mine = whole.narrow(0, 5 + me, 20).view({4, 5});
    mine.copy_(table_of(me));
    const auto window = backend.new_window(mine);
    EXPECT_EQ(window->get_attr(next).access_type, c10d::WindowAccessType::UNIFIED);
    EXPECT_TRUE(at::equal(mine, table_of(me)));
    EXPECT_TRUE(at::equal(window->map_remote_tensor(next), table_of(next)));
    backend.barrier({})->wait();
    for (const bool async : {false, true}) {
      const double mark = async ? 100 : 10;
      // Puts two rows of a transposed tensor into the next rank's table, and then sends a signal.
      const auto put = window->put(at::full({5, 2}, mark + me, at::kDouble).t(), next, 5, async);
      const auto told = window->signal(next, async);
      window->wait_signal(previous, async)->wait();
      put->wait();
      told->wait();
      at::Tensor want = table_of(me);
      want.narrow(0, 1, 2).fill_(mark + previous);
      EXPECT_TRUE(at::equal(mine, want)) << mine;
      EXPECT_TRUE(at::equal(whole.narrow(0, 5 + me, 20), want.flatten()));
      backend.barrier({})->wait();  // the put of the next round may arrive now
    }
    window->put(at::full({1}, -1.0, at::kDouble), me, 19, false)->wait();  // into this rank's own tensor
    EXPECT_EQ(mine[3][4].item<double>(), -1);
    window->tensor_deregister();
    EXPECT_THAT(error_of([&] { window->map_remote_tensor(0); }), HasSubstr("call tensor_register()"));
    // The tensor can be used as before, and so can the window.
    EXPECT_EQ((mine + 1).sizes(), table_of(0).sizes());
    at::Tensor second = at::full({3}, me, at::kShort);
    window->tensor_register(second, false);
    EXPECT_TRUE(at::equal(window->map_remote_tensor(previous), at::full({3}, previous, at::kShort)));
    backend.barrier({})->wait();
    EXPECT_EQ(backend.getMemoryStats()["shared_regions"], 2u);
    EXPECT_EQ(backend.getMemoryStats()["shared_bytes"], 2 * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
  });
}

// Each signal ends one wait and makes all earlier puts visible.
TEST(OneSidedTest, SignalsAreCounted) {
  with_extras(2, [](StarlingBackend& backend) {
    constexpr int kRounds = 200;
    at::Tensor mine = at::zeros({kRounds}, at::kInt);
    const auto window = backend.new_window(mine);
    const int peer = 1 - backend.getRank();
    c10::intrusive_ptr<c10d::Work> last;
    for (int i = 0; i < kRounds; ++i) {
      window->put(at::full({1}, i + 1, at::kInt), peer, i, true);
      last = window->signal(peer, true);
    }
    for (int i = 0; i < kRounds; ++i) {
      window->wait_signal(peer, false)->wait();
      EXPECT_EQ(mine[i].item<int>(), i + 1);
    }
    last->wait();
    // One more wait ends by the given timeout, and the group continues.
    c10d::WaitSignalOptions soon;
    soon.timeout = milliseconds(30);
    EXPECT_THAT(error_of<TimeoutError>([&] { window->wait_signal(peer, false, soon)->wait(); }),
                AllOf(HasSubstr("rank " + std::to_string(peer)), HasSubstr("did not signal within 30 ms")));
    EXPECT_EQ(backend.getError(), c10d::ErrorType::SUCCESS);
    backend.barrier({})->wait();
    window->signal(peer, true);
    c10d::WaitSignalOptions late;
    late.timeout = std::chrono::seconds(60);
    EXPECT_TRUE(window->wait_signal(peer, false, late)->wait());
    backend.barrier({})->wait();
  });
}

TEST(OneSidedTest, WrongCallsAreRefused) {
  with_extras(2, [](StarlingBackend& backend) {
    const int me = backend.getRank();
    const auto window = backend.new_window(std::nullopt);
    EXPECT_THAT(error_of([&] { window->put(at::zeros({1}), 0, 0, false); }), HasSubstr("tensor_register()"));
    EXPECT_THAT(error_of([&] { window->tensor_register(at::zeros({2, 3}).t()); }), HasSubstr("contiguous()"));
    EXPECT_THAT(error_of([&] { window->tensor_register(at::zeros({2 + me})); }),
                AllOf(HasSubstr("2 elements of Float on rank 0"), HasSubstr("3 of Float on rank 1")));
    at::Tensor mine = at::zeros({4});
    window->tensor_register(mine);
    EXPECT_THAT(error_of([&] { window->tensor_register(mine); }), HasSubstr("tensor_deregister()"));
    EXPECT_THAT(error_of([&] { window->put(at::zeros({2}), 1, 3, false); }),
                HasSubstr("2 elements from element 3 on, into a window of 4"));
    EXPECT_THAT(error_of([&] { window->put(at::zeros({1}, at::kInt), 1, 0, false); }),
                HasSubstr("Int into a window of"));
    EXPECT_THAT(error_of([&] { window->put(at::zeros({1}), 2, 0, false); }),
                HasSubstr("rank 2 does not exist in a group of 2 ranks"));
    EXPECT_THAT(error_of([&] { window->signal(me, false); }), HasSubstr("does not signal itself"));
    backend.barrier({})->wait();
    backend.shutdown();
    EXPECT_THAT(error_of<CommError>([&] { window->put(at::zeros({1}), 1, 0, false); }),
                HasSubstr("shut down"));
  });
}

// A wait for a signal that no rank sends ends with the backend.
TEST(OneSidedTest, ShutdownEndsAWaitForASignal) {
  with_extras(2, [](StarlingBackend& backend) {
    at::Tensor mine = at::zeros({4});
    const auto window = backend.new_window(mine);
    const auto never = window->wait_signal(1 - backend.getRank(), true);
    if (backend.getRank() == 0) backend.shutdown();
    EXPECT_NE(error_of<CommError>([&] { never->wait(); }), "");
  });
}

TEST(HooksTest, CompletionsAreReportedAndTimed) {
  with_extras(2, [](StarlingBackend& backend) {
    EXPECT_TRUE(backend.supportsCompletionHooks());
    std::mutex mutex;
    std::vector<uint64_t> keys;
    std::vector<bool> timed;
    std::vector<float> milliseconds_told;
    std::vector<std::chrono::duration<float>> active;  // in seconds
    std::vector<c10d::OpType> types;
    std::chrono::steady_clock::time_point begun;
    backend.registerCompletionHook(7, [&](const c10d::CompletionHookArgs& done) {
      const std::lock_guard lock(mutex);
      keys.push_back(done.completionKey);
      timed.push_back(done.duration_ms.has_value());
      if (done.duration_ms) milliseconds_told.push_back(*done.duration_ms);
    });
    backend.registerCompletionHook(8,
                                   [](const c10d::CompletionHookArgs&) { throw std::runtime_error("mine"); });
    Tensors tensors{at::ones({100})};
    const auto first = backend.allreduce(tensors, {});
    first->wait();
    EXPECT_THAT(error_of([&] { first->getDuration(); }), HasSubstr("enableCollectivesTiming()"));
    backend.waitForPendingWorks();
    backend.unregisterCompletionHook(8);
    EXPECT_FALSE(backend.hasHooks());
    backend.registerOnCompletionHook([&](const std::shared_ptr<c10d::WorkInfo>& info) {
      const std::lock_guard lock(mutex);
      types.push_back(info->opType);
      EXPECT_GE(info->timeStarted.time_since_epoch(), begun.time_since_epoch());
      EXPECT_EQ(info->activeDuration, std::chrono::duration<float>(info->timeFinished - info->timeStarted));
      active.push_back(info->activeDuration);
    });
    EXPECT_TRUE(backend.hasHooks());
    backend.enableCollectivesTiming();
    begun = std::chrono::steady_clock::now();
    const auto second = backend.broadcast(tensors, {});
    const auto third = backend.barrier(options_for<c10d::BarrierOptions>(false));
    backend.waitForPendingWorks();
    EXPECT_TRUE(second->isCompleted() && third->isCompleted());
    const std::chrono::duration<float> passed = std::chrono::steady_clock::now() - begun;
    backend.unregisterCompletionHook(7);
    backend.barrier({})->wait();
    backend.waitForPendingWorks();
    EXPECT_THAT(keys, testing::ElementsAre(first->getCompletionKey(), second->getCompletionKey(),
                                           third->getCompletionKey()));
    EXPECT_THAT(timed, testing::ElementsAre(false, true, true));
    EXPECT_THAT(types,
                testing::ElementsAre(c10d::OpType::BROADCAST, c10d::OpType::BARRIER, c10d::OpType::BARRIER));
    // The operations run one after another, so the sum of their times is at most the time that passed.
    ASSERT_EQ(active.size(), 3u);
    EXPECT_GT(active[0].count(), 0);
    EXPECT_GT(active[1].count(), 0);
    EXPECT_LE(active[0] + active[1], 1.001f * passed);
    // A hook, WorkInfo and getDuration() tell one time, in milliseconds except for WorkInfo.
    EXPECT_FLOAT_EQ(second->getDuration(), in_ms(active[0]));
    EXPECT_FLOAT_EQ(third->getDuration(), in_ms(active[1]));
    EXPECT_THAT(milliseconds_told,
                testing::ElementsAre(testing::FloatEq(in_ms(active[0])), testing::FloatEq(in_ms(active[1]))));
  });
}

// Waits for a receive whose message is sent only after the wait ends, by the timeout of setTimeout and by
// that of the group.
TEST(HooksTest, TheWaitForAllEndsByTheTimeout) {
  for (const bool set : {true, false}) {
    run_ranks(2, [&](const ThreadRank& at) {
      RendezvousOptions rendezvous;
      if (!set) rendezvous.group.timeout = milliseconds(50);  // the timeout of the group itself is longer
      const auto backend =
          c10::make_intrusive<StarlingBackend>(join_group(*at.store, at.rank, at.size), rendezvous);
      Tensors tensors{at::ones({10})}, word{at::ones({1})};
      if (at.rank == 1) {
        backend->recv(word, 0, 1)->wait();
        backend->send(tensors, 0, 0)->wait();
        return;
      }
      const auto received = backend->recv(tensors, 1, 0);
      if (set) backend->setTimeout(milliseconds(50));
      EXPECT_THAT(error_of<TimeoutError>([&] { backend->waitForPendingWorks(); }),
                  HasSubstr(std::string("rank 0: none of 1 pending operations has ended within ") +
                            (set ? "50 ms" : "2050 ms")));
      EXPECT_FALSE(received->isCompleted());
      backend->setTimeout(std::chrono::seconds(60));
      backend->send(word, 1, 1);
      backend->waitForPendingWorks();
      EXPECT_TRUE(received->isCompleted());
    });
  }
}

TEST(HooksTest, FailuresCallTheAbortHooksOnly) {
  with_extras(2, [](StarlingBackend& backend) {
    EXPECT_TRUE(backend.supportsAbortHooks());
    std::atomic<int> aborts{0}, removed{0}, completions{0};
    backend.registerAbortHook(1, [&] { ++aborts; });
    backend.registerAbortHook(2, [&] { ++removed; });
    backend.unregisterAbortHook(2);
    backend.registerCompletionHook(1, [&](const c10d::CompletionHookArgs&) { ++completions; });
    Tensors tensors{at::ones({backend.getRank() + 1})};  // shapes that differ
    const auto work = backend.allreduce(tensors, {});
    EXPECT_NE(error_of<CommError>([&] { work->wait(); }), "");
    EXPECT_EQ(aborts, 1);  // before the wait ends
    backend.waitForPendingWorks();
    backend.abort();
    EXPECT_EQ(aborts, 2);
    EXPECT_EQ(removed, 0);
    EXPECT_EQ(completions, 0);
  });
}

TEST(NotOfferedTest, TheErrorSaysWhatToUse) {
  const auto owner = c10::make_intrusive<StarlingBackend>(std::shared_ptr<Group>(make_single_group()));
  StarlingBackend& backend = *owner;
  EXPECT_FALSE(backend.supportsTimeEstimation());
  EXPECT_THAT(error_of([&] { backend.startTimeEstimate(); }), HasSubstr("starling bench comm"));
  EXPECT_THAT(error_of([&] { backend.endTimeEstimate(); }), HasSubstr("starling bench comm"));
  EXPECT_THAT(error_of([&] { backend.getMemAllocator(); }), HasSubstr("allocateTensor()"));
  EXPECT_THAT(error_of([&] { backend.suspend(); }), HasSubstr("shutdown()"));
  EXPECT_THAT(error_of([&] { backend.resume(); }), HasSubstr("new process group"));
}

// Records its calls. It stands for the backend of another device.
class RecordingBackend final : public c10d::Backend {
 public:
  explicit RecordingBackend(const DeviceRequest& request) : c10d::Backend(request.rank, request.size) {
    request.store->set("rank" + std::to_string(request.rank), request.name);
  }
  const std::string getBackendName() const override { return "recording"; }
  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    seen.push_back(tensors.at(0).device().type());
    auto work = c10::make_intrusive<StarlingWork>(WorkDescription{}, tensors);
    work->complete(nullptr);
    return work;
  }
  std::vector<c10::DeviceType> seen;
};

TEST(DeviceBackendsTest, TensorsGoToTheBackendOfTheirDevice) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(2, [&](const ThreadRank& at) {
    c10::intrusive_ptr<RecordingBackend> recorder;
    const auto make = [&](const DeviceRequest& request) -> c10::intrusive_ptr<c10d::Backend> {
      return recorder = c10::make_intrusive<RecordingBackend>(request);
    };
    RendezvousOptions rendezvous;
    rendezvous.name = "both";
    const auto group = make_process_group(store, at.rank, at.size, rendezvous,
                                          {{c10::DeviceType::Meta, c10d::ProcessGroup::UCC, make}});
    Tensors on_cpu{at::ones({5})}, on_meta{at::empty({5}, at::kMeta)};
    group->allreduce(on_cpu)->wait();
    EXPECT_TRUE(at::equal(on_cpu[0], at::full({5}, 2.0)));
    EXPECT_TRUE(recorder->seen.empty());
    EXPECT_TRUE(group->getBackend(c10::DeviceType::Meta)->allreduce(on_meta, {})->wait());
    EXPECT_THAT(recorder->seen, testing::ElementsAre(c10::DeviceType::Meta));
    EXPECT_EQ(recorder->getSize(), 2);
    EXPECT_EQ(group->getBackend(c10::DeviceType::CPU)->getBackendName(), "starling");
    EXPECT_EQ(group->getDefaultBackend()->getBackendName(), "starling");
    EXPECT_EQ(store->get_to_str("starling/both/meta/rank" + std::to_string(at.rank)),
              "both");  // keys of its own
    group->barrier()->wait();
  });
}

TEST(DeviceBackendsTest, WithoutAGpuNcclSaysWhatToDo) {
  if (!device_backends().empty()) GTEST_SKIP() << "a GPU is lent here";
  DeviceRequest request;
  request.store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(error_of([&] { make_nccl_backend(request); }),
              AllOf(HasSubstr("NCCL: "), HasSubstr("GPU"), HasSubstr("CPU tensors")));
}

TEST(DeviceBackendsTest, NcclCarriesTheTensorsOfAGpu) {
  if (device_backends().empty()) GTEST_SKIP() << "no GPU is lent here";
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  const auto group = make_process_group(store, 0, 1, {});
  Tensors on_gpu{at::ones({1000}, at::kCUDA)}, on_cpu{at::ones({1000})};
  for (Tensors* tensors : {&on_gpu, &on_cpu}) {
    group->allreduce(*tensors)->wait();
    EXPECT_TRUE(at::equal(tensors->at(0).cpu(), at::ones({1000})));
  }
  EXPECT_EQ(group->getBackend(c10::DeviceType::CUDA)->getBackendName(), "nccl");
}

}  // namespace
}  // namespace starling
