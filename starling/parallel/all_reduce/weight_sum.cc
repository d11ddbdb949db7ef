#include "starling/parallel/all_reduce/weight_sum.h"

#include <utility>

namespace starling {

void WeightSum::begin() {
  const std::lock_guard lock(mutex_);
  missing_ = threads_;
  sum_ = 0;
  done_ = false;
  error_ = nullptr;
}

double WeightSum::total(double weight) {
  std::unique_lock lock(mutex_);
  sum_ += weight;
  if (--missing_ == 0 && !error_) {
    try {
      if (group_.size() > 1) all_reduce(group_, &sum_, 1, DataType::kFp64, ReduceOp::kSum);
      done_ = true;
    } catch (...) {  // every thread of this step throws it
      error_ = std::current_exception();
    }
    changed_.notify_all();
  }
  changed_.wait(lock, [this] { return done_ || error_; });
  if (error_) std::rethrow_exception(error_);
  return sum_;
}

void WeightSum::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  changed_.notify_all();
}

}  // namespace starling
