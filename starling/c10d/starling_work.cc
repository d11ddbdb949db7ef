#include "starling/c10d/starling_work.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

c10d::WorkResult result_of(const std::exception_ptr& error) {
  if (!error) return c10d::WorkResult::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return c10d::WorkResult::TIMEOUT;
  } catch (const CommError&) {
    return c10d::WorkResult::COMM_ERROR;
  } catch (...) {
    return c10d::WorkResult::UNKNOWN;
  }
}

}  // namespace

StarlingWork::StarlingWork(const WorkDescription& description, std::vector<at::Tensor> outputs,
                           std::shared_ptr<WorkHooks> hooks)
    : c10d::Work(description.rank, description.type, description.title),
      description_(description),
      outputs_(std::move(outputs)),
      hooks_(std::move(hooks)) {
  if (hooks_) hooks_->begun();
}

StarlingWork::~StarlingWork() {
  if (hooks_ && !ended_) hooks_->ended();  // the operation was refused before it began
}

bool StarlingWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout.count() > 0 ? timeout : description_.timeout;
  std::unique_lock lock(mutex_);
  const auto completed = [this] { return completed_; };
  if (limit.count() <= 0) {
    cv_.wait(lock, completed);
  } else if (!cv_.wait_for(lock, limit, completed)) {
    throw TimeoutError(
        fmt::format("rank {}: {} (operation {}) has not finished within {} ms; wait longer, or see the "
                    "logs of the other ranks (timeout)",
                    description_.rank, description_.title, description_.sequence, limit.count()));
  }
  const std::exception_ptr error = exception_;
  lock.unlock();
  if (error) std::rethrow_exception(error);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> StarlingWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    }
    future = future_;
  }
  settle();
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> StarlingWork::getFutureResult() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (!result_future_) result_future_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future = result_future_;
  }
  settle();
  return future;
}

float StarlingWork::getDuration() const {
  if (!ended_ || !span_) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format(
            "{} (operation {}) has no duration: {}", description_.title, description_.sequence,
            ended_ ? "call enableCollectivesTiming() of its backend before it" : "wait() for it before"));
  }
  return std::chrono::duration<float, std::milli>(span_->second - span_->first).count();
}

void StarlingWork::begin() {
  if (!hooks_ || !hooks_->timed()) return;
  const auto now = std::chrono::steady_clock::now();
  span_.emplace(now, now);
}

void StarlingWork::complete(std::exception_ptr error) {
  const bool succeeded = error == nullptr;
  if (span_) span_->second = std::chrono::steady_clock::now();
  ended_ = true;
  finish(std::move(error));
  settle();
  if (!hooks_) return;
  if (succeeded) hooks_->succeeded(*this, span_);
  hooks_->ended();
}

void StarlingWork::settle() {
  c10::intrusive_ptr<c10::ivalue::Future> future, result;
  {
    const std::lock_guard lock(mutex_);
    if (!completed_) return;
    if (!std::exchange(settled_, settled_ || future_)) future = future_;
    if (!std::exchange(result_settled_, result_settled_ || result_future_)) result = result_future_;
  }
  // exception_ does not change after completed_ is set.
  if (result) result->markCompleted(c10::IValue(static_cast<int64_t>(result_of(exception_))));
  if (!future) return;
  if (exception_) {
    future->setError(exception_);
  } else {
    future->markCompleted(c10::IValue(outputs_));
  }
}

}  // namespace starling
