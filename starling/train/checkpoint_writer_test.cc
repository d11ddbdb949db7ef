#include "starling/train/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>

namespace starling {
namespace {

using testing::ElementsAre;

CheckpointState state_of(int64_t step) {
  CheckpointState state;
  state.step = step;
  return state;
}

// A disk that stalls until open() is called. It records the steps that were written.
class StalledDisk {
 public:
  void write(const CheckpointState& state) {
    stalled_.wait();
    const std::lock_guard lock(mutex_);
    steps_.push_back(state.step);
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

// start() would block for ever here if it waited for the disk.
TEST(CheckpointWriter, SkipsWhatIsDueWhileTheDiskStalls) {
  StalledDisk disk;
  CheckpointWriter writer([&](const CheckpointState& state) { disk.write(state); });
  EXPECT_TRUE(writer.start(state_of(10), false));
  EXPECT_FALSE(writer.start(state_of(20), false));
  EXPECT_FALSE(writer.start(state_of(30), false));
  EXPECT_EQ(writer.step(), 10);
  EXPECT_TRUE(disk.steps().empty());
  disk.open();
  writer.wait();
  EXPECT_TRUE(writer.start(state_of(40), false));
  writer.wait();
  EXPECT_THAT(disk.steps(), ElementsAre(10, 40));
}

TEST(CheckpointWriter, TheLastOneIsWrittenAfterTheEarlierOne) {
  StalledDisk disk;
  {
    CheckpointWriter writer([&](const CheckpointState& state) { disk.write(state); });
    EXPECT_TRUE(writer.start(state_of(10), false));
    EXPECT_TRUE(writer.start(state_of(20), true));
    EXPECT_EQ(writer.step(), 20);
    EXPECT_FALSE(writer.start(state_of(30), false));
    disk.open();
  }  // the destructor waits for both
  EXPECT_THAT(disk.steps(), ElementsAre(10, 20));
}

}  // namespace
}  // namespace starling
