// A data source whose reads stall until the test lets them go on. No test depends on how long a stall lasts.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/loader.h"
#include "starling/data/read_place.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

// Stops every read that contains a given sample, from the time that it begins until release().
class StallingSource final : public Source {
 public:
  StallingSource(int64_t size, int64_t stalls) : size_(size), stalls_(stalls) {
    info_.name = "disk:/mnt/far";
  }
  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return size_; }
  Batch read(const std::vector<int64_t>& indices, int64_t) const override {
    about_to_read("/mnt/far/first.bin", 0);
    if (std::find(indices.begin(), indices.end(), stalls_) != indices.end()) {
      about_to_read("/mnt/far/images.bin", 784 * static_cast<uint64_t>(stalls_));
      std::unique_lock lock(mutex_);
      stalled_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return released_; });
    }
    return {at::full({static_cast<int64_t>(indices.size())}, indices[0]), at::Tensor()};
  }

  // Waits until a read has stalled.
  void await_stall() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stalled_; });
  }
  bool stalled() const {
    const std::lock_guard lock(mutex_);
    return stalled_;
  }
  void release() const {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  SourceInfo info_;
  const int64_t size_, stalls_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool stalled_ = false, released_ = false;
};

LoaderOptions of_steps(int64_t prefetch) {
  LoaderOptions options;
  options.order = Order::kSequential;
  options.global_batch = 10;
  options.workers = 1;
  options.prefetch = prefetch;
  options.stall_s = 1e-3;
  return options;
}

TEST(Stall, NoStepWaitsWhileTheReadAheadLasts) {
  const auto source = std::make_shared<StallingSource>(100, 55);  // in step 6
  LoaderOptions options = of_steps(4);
  std::vector<ReadStall> stalls;
  bool stalled = false;  // before, a busy machine may make steps wait
  options.on_stall = [&](const ReadStall& stall) {
    if (!stalled) return;
    stalls.push_back(stall);
    source->release();  // the stall has been named, and only now it ends
  };
  const auto loader = make_loader(source, options);
  for (int step = 1; step <= 2; ++step) loader->next();
  source->await_stall();  // so the batches of steps 3 to 5 are ready
  stalled = true;
  const double before = loader->waited_s();
  for (int step = 3; step <= 5; ++step) loader->next();
  EXPECT_EQ(loader->waited_s(), before);
  EXPECT_TRUE(stalls.empty());

  const Batch batch = loader->next();
  EXPECT_EQ(batch.input[0].item<int64_t>(), 50);
  ASSERT_GE(stalls.size(), 2u);
  EXPECT_GE(loader->waited_s(), before + options.stall_s);
  const ReadStall& first = stalls.front();
  EXPECT_EQ(first.source, "disk:/mnt/far");
  EXPECT_EQ(first.place, "/mnt/far/images.bin at offset 43120");
  EXPECT_EQ(first.step, 6);
  EXPECT_EQ(first.epoch, 0);
  EXPECT_EQ(first.first, 50);
  EXPECT_EQ(first.samples, 10);
  EXPECT_EQ(first.prefetch, 4);
  EXPECT_GE(first.waited_s, options.stall_s);
  EXPECT_FALSE(first.over);
  EXPECT_TRUE(stalls.back().over);
  EXPECT_GE(stalls.back().bridging, 5);
  EXPECT_EQ(std::count_if(stalls.begin(), stalls.end(), [](const ReadStall& s) { return s.over; }), 1);
}

TEST(Stall, IsNamedAgainWheneverTheWaitHasDoubled) {
  const auto source = std::make_shared<StallingSource>(20, 3);
  LoaderOptions options = of_steps(1);
  std::vector<double> waits;
  options.on_stall = [&](const ReadStall& stall) {
    waits.push_back(stall.waited_s);
    if (waits.size() == 4) source->release();
  };
  make_loader(source, options)->next();
  ASSERT_GE(waits.size(), 5u);
  for (size_t i = 0; i < 4; ++i) EXPECT_GE(waits[i], options.stall_s * static_cast<double>(1 << i)) << i;
}

TEST(Stall, IsNotReportedIfTheTimeIsZero) {
  const auto source = std::make_shared<StallingSource>(20, 3);
  LoaderOptions options = of_steps(1);
  options.stall_s = 0;
  options.on_stall = [](const ReadStall& stall) { ADD_FAILURE() << stall_text(0, stall); };
  options.read_timeout_s = 0.02;
  EXPECT_THROW(make_loader(source, options)->next(), TimeoutError);
  source->release();
}

// The read of the worker does not end before the loader does.
TEST(Stall, ALoaderThatGaveUpEndsAlthoughAReadDoesNot) {
  auto source = std::make_shared<StallingSource>(20, 3);
  const std::weak_ptr<StallingSource> left = source;
  {
    LoaderOptions options = of_steps(2);
    options.read_timeout_s = 0.02;
    options.rank = 0;
    const auto loader = make_loader(source, options);
    source->await_stall();
    try {
      loader->next();
      FAIL() << "the read has not ended";
    } catch (const TimeoutError& error) {
      EXPECT_THAT(error.what(), HasSubstr("disk:/mnt/far: the batch of step 1 was not read within"));
      EXPECT_THAT(error.what(), HasSubstr("while reading /mnt/far/images.bin at offset 2352"));
    }
  }
  source->release();
  source.reset();
  while (!left.expired()) std::this_thread::yield();  // the worker ends and lets the source go
}

// A run may end, or an error may unwind, while a worker reads ahead.
TEST(Stall, ALoaderEndsAlthoughAReadThatNoStepWaitsForDoesNot) {
  auto source = std::make_shared<StallingSource>(20, 13);
  const std::weak_ptr<StallingSource> left = source;
  {
    LoaderOptions options = of_steps(2);
    options.workers = 2;
    options.leave_s = 0.02;
    const auto loader = make_loader(source, options);
    loader->next();
    source->await_stall();
  }
  EXPECT_GT(source.use_count(), 1);  // the worker that reads holds the source
  source->release();
  source.reset();
  while (!left.expired()) std::this_thread::yield();
}

TEST(Stall, ALoaderWaitsForAReadThatEnds) {
  const auto source = std::make_shared<StallingSource>(20, 13);
  LoaderOptions options = of_steps(2);
  options.leave_s = 1e6;
  auto loader = make_loader(source, options);
  loader->next();
  source->await_stall();
  std::thread releases([&] { source->release(); });
  loader = nullptr;
  EXPECT_EQ(source.use_count(), 1);
  releases.join();
}

TEST(Stall, NoBatchBehindTheLastStepIsReadAhead) {
  const auto source = std::make_shared<StallingSource>(30, 13);
  LoaderOptions options = of_steps(4);
  options.total_steps = 1;
  const auto loader = make_loader(source, options);
  EXPECT_EQ(loader->next().input[0].item<int64_t>(), 0);
  EXPECT_FALSE(source->stalled());
  source->release();
  EXPECT_EQ(loader->next().input[0].item<int64_t>(), 10);  // a batch that is asked for is read
  EXPECT_EQ(loader->next().input[0].item<int64_t>(), 20);
}

TEST(Stall, TheTextSaysWhatWaitsForWhatAndWhatToDo) {
  ReadStall stall{"images:/mnt/x", "/mnt/x/a.png at offset 12", 43, 2, 672, 16, 5.02, false, 4, 1};
  EXPECT_EQ(stall_text(1, stall),
            "rank 1 has waited 5.0 s for the data of step 43: images:/mnt/x reads /mnt/x/a.png at offset 12 "
            "(positions 672 to 687 of epoch 2). Training continues when the read ends. Check the disk or the "
            "network file system. Give --set data.prefetch=N to read more than 4 batches ahead, and --set "
            "data.workers=N to read with more than 1 thread");
  stall.place = "";
  stall.workers = 3;
  EXPECT_THAT(stall_text(1, stall), HasSubstr("images:/mnt/x reads its samples ("));
  EXPECT_THAT(stall_text(1, stall), HasSubstr("more than 3 threads"));
  stall.over = true;
  EXPECT_EQ(stall_text(1, stall), "rank 1 has the data of step 43 after 5.0 s of waiting");
  stall.bridging = 32;
  EXPECT_THAT(stall_text(1, stall),
              HasSubstr("; --set data.prefetch=32 outlasts such a wait at the present"));
}

TEST(ReadPlace, BelongsToTheThreadAndEndsWithItsScope) {
  ReadPlace outer, inner;
  about_to_read("nobody", 1);
  {
    const ReadPlaceScope scope(outer);
    about_to_read("a", 2);
    {
      const ReadPlaceScope nested(inner);
      about_to_read("b", 3);
    }
    std::thread([] { about_to_read("another thread", 4); }).join();
    EXPECT_EQ(outer.text(), "a at offset 2");
    about_to_read("a", 5);
  }
  about_to_read("nobody", 6);
  EXPECT_EQ(outer.text(), "a at offset 5");
  EXPECT_EQ(inner.text(), "b at offset 3");
  outer.clear();
  EXPECT_EQ(outer.text(), "");
}

}  // namespace
}  // namespace starling
