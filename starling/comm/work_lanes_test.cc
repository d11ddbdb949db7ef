#include "starling/comm/work_lanes.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/testing/error_of.h"

namespace starling {
namespace {

constexpr std::chrono::seconds kSoon{30};

// Outcome is the future end of a job.
struct Outcome {
  std::promise<std::exception_ptr> promise;
  std::future<std::exception_ptr> future = promise.get_future();
  LaneJob job(std::function<void()> body) {
    return {std::move(body), [this](std::exception_ptr error) { promise.set_value(std::move(error)); }};
  }
  std::exception_ptr get() {
    if (future.wait_for(kSoon) != std::future_status::ready) throw TimeoutError("the job has not ended");
    return future.get();
  }
};

// Jobs of one lane are executed and completed one after another, also if the lane runs empty in between. The
// test's vectors have no lock: TSan would report two jobs at the same time.
TEST(WorkLanes, ExecutesAndCompletesTheJobsOfALaneInOrder) {
  WorkLanes lanes("the test has ended");
  std::vector<int> order, completed;
  std::vector<Outcome> outcomes(200);
  for (int i = 0; i < 200; ++i) {
    lanes.submit({3, 7}, {[&, i] { order.push_back(i); },
                          [&, i](std::exception_ptr error) {
                            completed.push_back(i);
                            if (i % 10 == 0) std::this_thread::yield();
                            outcomes[i].promise.set_value(std::move(error));
                          }});
    if (i % 7 == 0) {
      EXPECT_EQ(outcomes[i].get(), nullptr);
    }
  }
  for (int i = 0; i < 200; ++i) {
    if (i % 7 != 0) {
      EXPECT_EQ(outcomes[i].get(), nullptr);
    }
    EXPECT_EQ(order[i], i);
    EXPECT_EQ(completed[i], i);
  }
  EXPECT_FALSE(lanes.busy());
}

// The second job is submitted while the first job completes. It begins after that completion.
TEST(WorkLanes, ACompletionEndsBeforeTheNextJobBegins) {
  WorkLanes lanes("the test has ended");
  std::promise<void> completing, go_on;
  Outcome second;
  std::atomic<bool> first_ended{false};
  lanes.submit({}, {[] {},
                    [&](std::exception_ptr) {
                      completing.set_value();
                      go_on.get_future().wait();
                      first_ended = true;
                    }});
  completing.get_future().wait();
  EXPECT_FALSE(lanes.busy({}));
  lanes.submit({}, second.job([&] { EXPECT_TRUE(first_ended); }));
  go_on.set_value();
  EXPECT_EQ(second.get(), nullptr);
}

// A loop that waits for each job needs one thread. Many lanes need many threads, but few threads stay.
TEST(WorkLanes, ThreadsAreAsManyAsNeeded) {
  WorkLanes lanes("the test has ended");
  for (int i = 0; i < 300; ++i) {
    Outcome outcome;
    lanes.submit({}, outcome.job([] {}));
    EXPECT_EQ(outcome.get(), nullptr);
  }
  EXPECT_EQ(lanes.threads(), 1u);

  constexpr int kMany = 30;
  std::promise<void> go_on;
  const std::shared_future<void> end = go_on.get_future().share();
  std::vector<Outcome> outcomes(kMany);
  for (int i = 0; i < kMany; ++i) lanes.submit({i, 0}, outcomes[i].job([end] { end.wait(); }));
  EXPECT_GE(lanes.threads(), static_cast<size_t>(kMany));
  EXPECT_LE(lanes.threads(), static_cast<size_t>(kMany) + 1);  // the first thread may be completing yet
  go_on.set_value();
  for (Outcome& outcome : outcomes) EXPECT_EQ(outcome.get(), nullptr);
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  while (lanes.threads() > WorkLanes::kIdleThreads && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_LE(lanes.threads(), WorkLanes::kIdleThreads);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // both need address space of their own
TEST(WorkLanes, AJobWhoseThreadCannotBeStartedIsRefusedAndNeverRuns) {
  WorkLanes lanes("the test has ended");
  std::promise<void> go_on;
  const std::shared_future<void> end = go_on.get_future().share();
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  const rlimit none{1, limit.rlim_max};
  std::vector<Outcome> accepted(200);  // the C library keeps the stacks of some ended threads
  std::atomic<bool> ran{false};
  std::string refused;
  int next = 0;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
  for (; next < 200 && refused.empty(); ++next) {
    refused =
        error_of<CommError>([&] { lanes.submit({next, 0}, accepted[next].job([end] { end.wait(); })); });
  }
  const std::string again = error_of<CommError>(
      [&] { lanes.submit({1'000, 0}, {[&] { ran = true; }, [&](std::exception_ptr) { ran = true; }}); });
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_THAT(refused, testing::HasSubstr("a thread for the operation cannot be started"));
  EXPECT_EQ(again, refused);
  EXPECT_FALSE(lanes.busy({1'000, 0}));
  go_on.set_value();
  for (int i = 0; i + 1 < next; ++i) EXPECT_EQ(accepted[i].get(), nullptr);
  Outcome later;
  lanes.submit({1'000, 0}, later.job([] {}));
  EXPECT_EQ(later.get(), nullptr);
  EXPECT_FALSE(ran);
}
#endif

// Each job waits for the job of the next lane. They end only if all lanes progress at the same time.
TEST(WorkLanes, LanesProgressAtTheSameTime) {
  constexpr int kLanes = 8;
  WorkLanes lanes("the test has ended");
  std::vector<std::promise<void>> begun(kLanes + 1);
  std::vector<Outcome> outcomes(kLanes);
  begun[kLanes].set_value();
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes.submit({lane, 0}, outcomes[lane].job([&, lane] {
      begun[lane].set_value();
      if (begun[lane + 1].get_future().wait_for(kSoon) != std::future_status::ready)
        throw TimeoutError("the next lane has not begun");
    }));
  }
  for (Outcome& outcome : outcomes) EXPECT_EQ(outcome.get(), nullptr);
}

TEST(WorkLanes, RunExecutesInTheCallingThreadUnlessTheLaneIsBusy) {
  WorkLanes lanes("the test has ended");
  std::thread::id executed_by;
  const auto body = [&] { executed_by = std::this_thread::get_id(); };
  Outcome alone, first, second;
  const auto complete = [](Outcome& to) {
    return [&to](std::exception_ptr error) { to.promise.set_value(std::move(error)); };
  };
  lanes.run({}, body, complete(alone));
  EXPECT_EQ(executed_by, std::this_thread::get_id());
  EXPECT_EQ(alone.get(), nullptr);
  EXPECT_EQ(lanes.threads(), 0u);

  std::promise<void> go_on;
  lanes.submit({}, first.job([&] { go_on.get_future().wait(); }));
  EXPECT_TRUE(lanes.busy({}));
  EXPECT_FALSE(lanes.busy({1, 0}));
  lanes.run({}, body, complete(second));
  go_on.set_value();
  EXPECT_EQ(first.get(), nullptr);
  EXPECT_EQ(second.get(), nullptr);
  EXPECT_NE(executed_by, std::this_thread::get_id());
}

// Jobs that are submitted while run() executes wait for it.
TEST(WorkLanes, JobsWaitBehindARun) {
  WorkLanes lanes("the test has ended");
  std::vector<int> order;
  std::vector<Outcome> outcomes(3);
  lanes.run(
      {},
      [&] {
        for (int i = 0; i < 3; ++i) lanes.submit({}, outcomes[i].job([&, i] { order.push_back(i); }));
        EXPECT_TRUE(lanes.busy({}));
        order.push_back(-1);
      },
      [](std::exception_ptr) {});
  for (Outcome& outcome : outcomes) EXPECT_EQ(outcome.get(), nullptr);
  EXPECT_EQ(order, (std::vector<int>{-1, 0, 1, 2}));
}

// Several threads submit to few lanes and run in them. All jobs end, one at a time for each lane.
TEST(WorkLanes, ManyThreadsAndLanes) {
  constexpr int kThreads = 4, kEach = 500, kLanes = 3;
  WorkLanes lanes("the test has ended");
  std::atomic<int> inside[kLanes] = {};
  std::atomic<int> ended{0}, together{0};
  const auto body_of = [&](int lane) {
    return [&, lane] {
      if (inside[lane].fetch_add(1) != 0) ++together;
      std::this_thread::yield();
      inside[lane].fetch_sub(1);
    };
  };
  const auto complete = [&](std::exception_ptr) { ++ended; };
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const int lane = (t + i) % kLanes;
        if (i % 2 == 0) lanes.run({lane, 0}, body_of(lane), complete);
        if (i % 2 == 1) lanes.submit({lane, 0}, {body_of(lane), complete});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  while (ended < kThreads * kEach && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(ended, kThreads * kEach);
  EXPECT_EQ(together, 0);
}

// The thread that has waited for the last job of a lane finds the lane idle.
TEST(WorkLanes, ALaneIsIdleWhenItsLastJobCompletes) {
  WorkLanes lanes("the test has ended");
  for (int i = 0; i < 200; ++i) {
    Outcome outcome;
    lanes.submit({}, outcome.job([] {}));
    EXPECT_EQ(outcome.get(), nullptr);
    EXPECT_FALSE(lanes.busy({}));
  }
}

TEST(WorkLanes, ABodyThatThrowsFailsItsJobOnly) {
  WorkLanes lanes("the test has ended");
  Outcome bad, good;
  lanes.submit({}, bad.job([] { throw CommError("no"); }));
  lanes.submit({}, good.job([] {}));
  EXPECT_THROW(std::rethrow_exception(bad.get()), CommError);
  EXPECT_EQ(good.get(), nullptr);
}

TEST(WorkLanes, StopWaitsForTheJobInProgressAndThenFailsTheOthers) {
  WorkLanes lanes("the test has ended");
  std::promise<void> begun, go_on;
  Outcome running, waiting;
  std::atomic<bool> ended{false};
  lanes.submit({}, running.job([&] {
    begun.set_value();
    go_on.get_future().wait();
    ended = true;
  }));
  lanes.submit({}, {[] { FAIL() << "stop() must come first"; },
                    [&](std::exception_ptr error) {
                      EXPECT_TRUE(ended);
                      waiting.promise.set_value(std::move(error));
                    }});
  begun.get_future().wait();
  std::thread stopper([&] { lanes.stop(); });
  const auto closed = [&] {
    return error_of<CommError>([&] { lanes.submit({5, 5}, {[] {}, [](std::exception_ptr) {}}); });
  };
  while (closed().empty()) std::this_thread::yield();
  go_on.set_value();
  stopper.join();
  EXPECT_EQ(running.get(), nullptr);
  const std::exception_ptr never_begun = waiting.get();
  EXPECT_EQ(error_of<CommError>([&] { std::rethrow_exception(never_begun); }), "the test has ended");
  EXPECT_EQ(closed(), "the test has ended");
  EXPECT_FALSE(lanes.busy());
}

TEST(WorkLanes, StopWaitsForARun) {
  WorkLanes lanes("the test has ended");
  std::promise<void> begun, go_on;
  std::atomic<bool> ended{false};
  std::thread runner([&] {
    lanes.run(
        {},
        [&] {
          begun.set_value();
          go_on.get_future().wait();
          ended = true;
        },
        [](std::exception_ptr) {});
  });
  begun.get_future().wait();
  lanes.close();
  std::thread releaser([&] { go_on.set_value(); });
  lanes.stop();
  EXPECT_TRUE(ended);
  runner.join();
  releaser.join();
}

TEST(WorkLanes, ACompletionMayDestroyTheLanes) {
  auto lanes = std::make_unique<WorkLanes>("the test has ended");
  std::promise<void> ended;
  // Two jobs: at the first completion the lane still has a job, at the second it has none.
  for (const bool last : {false, true}) {
    if (last) lanes = std::make_unique<WorkLanes>("the test has ended");
    ended = {};
    std::promise<void> submitted;
    lanes->submit({}, {[&] { submitted.get_future().wait(); },
                       [&](std::exception_ptr) {
                         lanes.reset();
                         ended.set_value();
                       }});
    if (!last) lanes->submit({}, {[] {}, [](std::exception_ptr) {}});
    submitted.set_value();
    ASSERT_EQ(ended.get_future().wait_for(kSoon), std::future_status::ready);
  }
}

}  // namespace
}  // namespace starling
