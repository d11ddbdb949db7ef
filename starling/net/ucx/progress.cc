#include "starling/net/ucx/progress.h"

#include <chrono>
#include <utility>
#include <vector>

namespace starling {
namespace {

constexpr std::chrono::milliseconds kTick{20};

// Keeps a worker until the process ends.
void keep(std::shared_ptr<UcxLibrary> library, std::unique_ptr<UcxWorker> worker) {
  struct Kept {
    std::mutex mutex;
    std::vector<std::pair<std::shared_ptr<UcxLibrary>, std::unique_ptr<UcxWorker>>> workers;
  };
  static auto* const kept = new Kept;
  const std::lock_guard lock(kept->mutex);
  kept->workers.emplace_back(std::move(library), std::move(worker));
}

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
  if (given_up_) keep(std::move(library_), std::move(worker_));
}

void UcxProgress::give_up(const CommError& why) {
  if (!given_up_) given_up_ = why;
}

// A thread that holds the worker progresses it, so tick() has nothing to do then. Work beyond one turn waits
// for the next tick.
void UcxProgress::tick() {
  std::unique_lock ending(ending_mutex_);
  while (!ending_told_.wait_for(ending, kTick, [this] { return ending_; })) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || given_up_) continue;
    for (int calls = 0; calls < kMostCalls && worker_->progress(); ++calls) continue;
  }
}

}  // namespace starling
