#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "starling/comm/group.h"
#include "starling/parallel/all_reduce/gradient_reducer.h"

namespace starling {
namespace {

class NetworkReducer final : public GradientReducer {
 public:
  NetworkReducer(Group& group, const Clock& clock, size_t buckets, BucketWork reduce, BucketWork work)
      : group_(group), clock_(clock), reduce_(std::move(reduce)), work_(std::move(work)), complete_(buckets) {
    thread_ = std::thread([this] { serve(); });
  }

  ~NetworkReducer() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void begin(int64_t step) override {
    std::lock_guard lock(mutex_);
    complete_.assign(complete_.size(), false);
    posted_ = worked_ = 0;
  }

  void completed(size_t bucket) override {
    std::lock_guard lock(mutex_);
    complete_[bucket] = true;
    while (posted_ < complete_.size() && complete_[posted_]) ++posted_;
    changed_.notify_all();
  }

  Finish finish() override {
    const Nanoseconds start = clock_.now();
    std::unique_lock lock(mutex_);
    // This wait ends, because every reduction has the group's timeout and a failed reduction sets error_.
    changed_.wait(lock, [this] { return worked_ == complete_.size() || error_; });
    if (error_) std::rethrow_exception(error_);
    return {to_seconds(clock_.now() - start), -1};
  }

  double wait_for_all() override {
    const Nanoseconds start = clock_.now();
    barrier(group_);
    return to_seconds(clock_.now() - start);
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || (worked_ < posted_ && !error_); });
      if (stopping_) return;
      const size_t bucket = worked_;
      lock.unlock();
      std::exception_ptr error;
      try {
        reduce_(bucket);
        work_(bucket);
      } catch (...) {  // this function is the outermost of its thread; finish() rethrows
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error;
      ++worked_;
      changed_.notify_all();
    }
  }

  Group& group_;
  const Clock& clock_;
  BucketWork reduce_, work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> complete_;
  size_t posted_ = 0, worked_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<GradientReducer> make_network_reducer(Group& group, const Clock& clock, size_t buckets,
                                                      BucketWork reduce, BucketWork work) {
  return std::make_unique<NetworkReducer>(group, clock, buckets, std::move(reduce), std::move(work));
}

}  // namespace starling
