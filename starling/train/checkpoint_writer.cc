#include "starling/train/checkpoint_writer.h"

#include <chrono>
#include <utility>

namespace starling {

CheckpointWriter::CheckpointWriter(std::function<void(const CheckpointState&)> write)
    : write_(std::move(write)) {}

CheckpointWriter::~CheckpointWriter() {
  wait();
}

bool CheckpointWriter::done_within(std::chrono::milliseconds wait) const {
  return !writing_.valid() || writing_.wait_for(wait) == std::future_status::ready;
}

bool CheckpointWriter::start(CheckpointState state, bool last) {
  if (busy() && !last) return false;
  step_ = state.step;
  writing_ = std::async(std::launch::async, [this, before = writing_, state = std::move(state)] {
               if (before.valid()) before.wait();
               write_(state);
             }).share();
  return true;
}

void CheckpointWriter::wait() {
  if (writing_.valid()) writing_.wait();
}

}  // namespace starling
