#include "starling/c10d/work.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "starling/base/error.h"

namespace starling {

StarlingWork::StarlingWork(const WorkDescription& description, std::vector<at::Tensor> outputs)
    : c10d::Work(description.rank, description.type, description.title),
      description_(description),
      outputs_(std::move(outputs)) {}

bool StarlingWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout.count() > 0 ? timeout : description_.timeout;
  std::unique_lock lock(mutex_);
  const auto completed = [this] { return completed_; };
  if (limit.count() <= 0) {
    cv_.wait(lock, completed);
  } else if (!cv_.wait_for(lock, limit, completed)) {
    throw TimeoutError(
        fmt::format("rank {}: {} (operation {}) has not finished within {} ms; wait longer, or see the "
                    "logs of the other ranks",
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

void StarlingWork::complete(std::exception_ptr error) {
  finish(std::move(error));
  settle();
}

void StarlingWork::settle() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (!completed_ || !future_ || settled_) return;
    settled_ = true;
    future = future_;
  }
  if (exception_) {  // fixed since completed_
    future->setError(exception_);
  } else {
    future->markCompleted(c10::IValue(outputs_));
  }
}

}  // namespace starling
