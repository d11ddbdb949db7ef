// CheckpointWriter writes checkpoints on a thread, so that training does not wait for the disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>

#include "starling/train/checkpoint.h"

namespace starling {

// At most one checkpoint is written at a time. Not thread-safe: one thread must make all calls.
class CheckpointWriter {
 public:
  // `write` writes one checkpoint. It runs on a thread and must not throw.
  explicit CheckpointWriter(std::function<void(const CheckpointState&)> write);
  // Waits for what has been started.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Starts to write `state`, whose tensors must not change, and returns at once. If an earlier checkpoint is
  // still being written, the function returns false and drops `state`. If `last` is true, the state is
  // written after the earlier checkpoint instead.
  bool start(CheckpointState state, bool last);
  // The step of the checkpoint that was started last.
  int64_t step() const { return step_; }
  // Returns true while a checkpoint is being written.
  bool busy() const { return !done_within(std::chrono::milliseconds(0)); }
  // Waits for what has been started, at most `wait`. Returns true if it is done.
  bool done_within(std::chrono::milliseconds wait) const;
  // Waits for what has been started.
  void wait();

 private:
  const std::function<void(const CheckpointState&)> write_;
  std::shared_future<void> writing_;
  int64_t step_ = -1;
};

}  // namespace starling
