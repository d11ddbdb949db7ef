#include "starling/train/checkpoint_writer.h"

#include <chrono>
#include <utility>

namespace starling {

CheckpointWriter::~CheckpointWriter() {
  wait();
}

bool CheckpointWriter::done_within(std::chrono::milliseconds wait) const {
  return !writing_.valid() || writing_.wait_for(wait) == std::future_status::ready;
}

bool CheckpointWriter::start(int64_t step, std::function<void()> write, bool last) {
  if (busy() && !last) return false;
  step_ = step;
  // The shared state of a future keeps its function. What the function holds is dropped here, because
  // otherwise each checkpoint would keep the one before it in memory.
  writing_ = std::async(std::launch::async, [before = writing_, write = std::move(write)]() mutable {
               if (before.valid()) before.wait();
               before = {};
               write();
               write = nullptr;
             }).share();
  return true;
}

void CheckpointWriter::wait() {
  if (writing_.valid()) writing_.wait();
}

}  // namespace starling
