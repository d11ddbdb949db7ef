#include <fmt/format.h>

#include <vector>

#include "starling/comm/host/local_sync.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/all_reduce/gradient_reducer.h"

namespace starling {
namespace {

// The counters of LocalSync, kFilledCounter and kDoneCounter, grow over the whole run. The first counts
// buckets and the second counts steps.
class HostReducer final : public GradientReducer {
 public:
  HostReducer(Group& group, const Clock& clock, size_t buckets, BucketWork work)
      : sync_(group.local_ranks().size() > 1 ? group.local_sync() : nullptr),
        clock_(clock),
        work_(std::move(work)),
        complete_(buckets) {
    if (sync_ != nullptr) {
      steps_begun_ = sync_->peek(sync_->rank(), kDoneCounter);
      base_ = sync_->peek(sync_->rank(), kFilledCounter);
    }
  }

  void begin(int64_t step) override {
    step_ = step;
    base_ += posted_;  // all buckets of the previous step
    ++steps_begun_;
    complete_.assign(complete_.size(), false);
    posted_ = worked_ = 0;
  }

  void completed(size_t bucket) override {
    complete_[bucket] = true;
    const size_t before = posted_;
    while (posted_ < complete_.size() && complete_[posted_]) ++posted_;
    if (posted_ == before) return;
    if (sync_ != nullptr) sync_->post(kFilledCounter, base_ + posted_);
    while (worked_ < posted_ && all_have(worked_)) work_(worked_++);
  }

  Finish finish() override {
    Finish result;
    while (worked_ < complete_.size()) {
      if (!all_have(worked_)) {
        const Nanoseconds start = clock_.now();
        result.slowest_local = wait_for_bucket(worked_);
        result.waited_s += to_seconds(clock_.now() - start);
      }
      work_(worked_++);
    }
    return result;
  }

  double wait_for_all() override {
    if (sync_ == nullptr) return 0;
    const Nanoseconds start = clock_.now();
    sync_->post(kDoneCounter, steps_begun_);
    for (int r = 0; r < sync_->size(); ++r) {
      if (r != sync_->rank())
        sync_->wait(r, kDoneCounter, steps_begun_, fmt::format("the update of step {}", step_));
    }
    return to_seconds(clock_.now() - start);
  }

 private:
  bool all_have(size_t bucket) const {
    if (sync_ == nullptr) return true;
    for (int r = 0; r < sync_->size(); ++r) {
      if (r != sync_->rank() && sync_->peek(r, kFilledCounter) < base_ + bucket + 1) return false;
    }
    return true;
  }

  // Returns the rank that completed the bucket last. If several ranks were late at the first check, it is the
  // one waited for last.
  int wait_for_bucket(size_t bucket) {
    int slowest = -1;
    for (int r = 0; r < sync_->size(); ++r) {
      if (r == sync_->rank() || sync_->peek(r, kFilledCounter) >= base_ + bucket + 1) continue;
      sync_->wait(r, kFilledCounter, base_ + bucket + 1,
                  fmt::format("gradient bucket {} of step {}", bucket, step_));
      slowest = r;
    }
    return slowest;
  }

  LocalSync* sync_;
  const Clock& clock_;
  BucketWork work_;
  std::vector<bool> complete_;
  int64_t step_ = 0;
  uint64_t base_ = 0;  // number of buckets of all earlier steps
  uint64_t steps_begun_ = 0;
  size_t posted_ = 0, worked_ = 0;
};

}  // namespace

std::unique_ptr<GradientReducer> make_host_reducer(Group& group, const Clock& clock, size_t buckets,
                                                   BucketWork work) {
  return std::make_unique<HostReducer>(group, clock, buckets, std::move(work));
}

}  // namespace starling
