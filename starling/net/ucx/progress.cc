#include "starling/net/ucx/progress.h"

#include <chrono>
#include <utility>

namespace starling {
namespace {

constexpr std::chrono::milliseconds kTick{20};

}  // namespace

UcxProgress::UcxProgress(std::shared_ptr<UcxLibrary> library, std::unique_ptr<UcxWorker> worker)
    : library_(std::move(library)), worker_(std::move(worker)), ticking_([this] { tick(); }) {}

UcxProgress::~UcxProgress() {
  {
    const std::lock_guard lock(ending_mutex_);
    ending_ = true;
  }
  ending_told_.notify_all();
  ticking_.join();
}

// Whoever holds the worker progresses it; then there is nothing to do here. What is more than one turn waits for the next.
void UcxProgress::tick() {
  std::unique_lock ending(ending_mutex_);
  while (!ending_told_.wait_for(ending, kTick, [this] { return ending_; })) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) continue;
    for (int calls = 0; calls < kMostCalls && worker_->progress(); ++calls) continue;
  }
}

}  // namespace starling
