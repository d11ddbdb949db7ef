// CheckpointWriter writes checkpoints on a thread, so that training does not wait for the disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>

namespace starling {

// At most one checkpoint is written at a time. Not thread-safe: one thread must make all calls.
class CheckpointWriter {
 public:
  CheckpointWriter() = default;
  // Waits for what has been started.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Starts to write the checkpoint of `step` and returns at once. `write` writes it. It runs on a thread,
  // holds all that it needs, and must not throw. If an earlier checkpoint is still being written, the
  // function returns false and drops `write`. If `last` is true, `write` runs after the earlier one instead.
  bool start(int64_t step, std::function<void()> write, bool last);
  // The step of the checkpoint that was started last.
  int64_t step() const { return step_; }
  // Returns true while a checkpoint is being written.
  bool busy() const { return !done_within(std::chrono::milliseconds(0)); }
  // Waits for what has been started, at most `wait`. Returns true if it is done.
  bool done_within(std::chrono::milliseconds wait) const;
  // Waits for what has been started.
  void wait();

 private:
  std::shared_future<void> writing_;
  int64_t step_ = -1;
};

}  // namespace starling
