#include "starling/train/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <mutex>

namespace starling {
namespace {

using testing::ElementsAre;

// A disk that stalls until open() is called. It records the steps that were written.
class StalledDisk {
 public:
  // Returns what writes the checkpoint of `step`.
  std::function<void()> writes(int64_t step) {
    return [this, step] {
      stalled_.wait();
      const std::lock_guard lock(mutex_);
      steps_.push_back(step);
    };
  }
  void open() { gate_.set_value(); }
  std::vector<int64_t> steps() {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  std::promise<void> gate_;
  std::shared_future<void> stalled_ = gate_.get_future().share();
  std::mutex mutex_;
  std::vector<int64_t> steps_;
};

// start() would block forever here if it waited for the disk.
TEST(CheckpointWriter, SkipsWhatIsDueWhileTheDiskStalls) {
  StalledDisk disk;
  CheckpointWriter writer;
  EXPECT_TRUE(writer.start(10, disk.writes(10), false));
  EXPECT_FALSE(writer.start(20, disk.writes(20), false));
  EXPECT_FALSE(writer.start(30, disk.writes(30), false));
  EXPECT_EQ(writer.step(), 10);
  EXPECT_TRUE(disk.steps().empty());
  disk.open();
  writer.wait();
  EXPECT_TRUE(writer.start(40, disk.writes(40), false));
  writer.wait();
  EXPECT_THAT(disk.steps(), ElementsAre(10, 40));
}

TEST(CheckpointWriter, TheLastOneIsWrittenAfterTheEarlierOne) {
  StalledDisk disk;
  {
    CheckpointWriter writer;
    EXPECT_TRUE(writer.start(10, disk.writes(10), false));
    EXPECT_TRUE(writer.start(20, disk.writes(20), true));
    EXPECT_EQ(writer.step(), 20);
    EXPECT_FALSE(writer.start(30, disk.writes(30), false));
    disk.open();
  }  // the destructor waits for both
  EXPECT_THAT(disk.steps(), ElementsAre(10, 20));
}

TEST(CheckpointWriter, WhatIsWrittenIsDropped) {
  CheckpointWriter writer;
  std::vector<std::weak_ptr<int>> states;
  for (int64_t step = 1; step <= 3; ++step) {
    auto state = std::make_shared<int>(0);
    states.emplace_back(state);
    EXPECT_TRUE(writer.start(step, [state] { ++*state; }, true));
    state.reset();
    writer.wait();
    for (const auto& written : states) EXPECT_TRUE(written.expired()) << step;
  }
}

}  // namespace
}  // namespace starling
