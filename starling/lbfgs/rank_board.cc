#include "starling/lbfgs/rank_board.h"

#include <utility>

namespace starling {

// Calls `change` under the mutex and wakes the other thread.
template <typename Change>
void RankBoard::change(const Change& change) {
  {
    const std::lock_guard lock(mutex_);
    change();
    ++changes_;
  }
  changed_.notify_all();
}

void RankBoard::open(OpenEvaluation evaluation) {
  change([&] {
    evaluation_ = std::move(evaluation);
    open_ = true;
  });
}

void RankBoard::close() {
  change([&] { open_ = false; });
}

void RankBoard::stop() {
  change([&] { ended_ = true; });
}

void RankBoard::break_off(std::exception_ptr failure) {
  change([&] {
    if (!broken_) failure_ = std::move(failure);
    broken_ = true;
  });
}

std::optional<OpenEvaluation> RankBoard::await(int64_t least) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || broken_ || (open_ && evaluation_.number >= least); });
  if (ended_ || broken_) return std::nullopt;
  return evaluation_;
}

bool RankBoard::is_over(int64_t number) const {
  const std::lock_guard lock(mutex_);
  return over(number);
}

void RankBoard::wait_in(int64_t number, std::chrono::steady_clock::time_point end) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, end, [&] { return over(number); });
}

void RankBoard::put(const PortionRequest& request) {
  change([&] { request_ = request; });
}

std::optional<PortionRequest> RankBoard::take_request() {
  const std::lock_guard lock(mutex_);
  return std::exchange(request_, std::nullopt);
}

void RankBoard::put(const PortionAnswer& answer) {
  change([&] { answer_ = answer; });
}

std::optional<PortionAnswer> RankBoard::take_answer() {
  const std::lock_guard lock(mutex_);
  return std::exchange(answer_, std::nullopt);
}

void RankBoard::put(OwnPart part) {
  change([&] { parts_.push_back(std::move(part)); });
}

std::optional<OwnPart> RankBoard::take_part() {
  const std::lock_guard lock(mutex_);
  if (parts_.empty()) return std::nullopt;
  OwnPart part = std::move(parts_.back());
  parts_.pop_back();
  return part;
}

uint64_t RankBoard::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

void RankBoard::wait(uint64_t since, std::chrono::microseconds pause) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, pause, [&] { return changes_ != since || broken_; });
}

void RankBoard::rethrow_failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

bool RankBoard::is_broken() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

}  // namespace starling
