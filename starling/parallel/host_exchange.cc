#include <fmt/format.h>

#include <vector>

#include "starling/comm/local_sync.h"
#include "starling/parallel/bucket_exchange.h"

namespace starling {
namespace {

// Slots of LocalSync. Both count up over the whole run: kFilled by buckets, kDone by steps.
constexpr int kFilledSlot = 0;
constexpr int kDoneSlot = 1;

class HostExchange final : public BucketExchange {
 public:
  HostExchange(Group& group, const Clock& clock, size_t buckets, BucketWork work)
      : sync_(group.local_ranks().size() > 1 ? group.local_sync() : nullptr),
        clock_(clock),
        work_(std::move(work)),
        complete_(buckets) {
    if (sync_ != nullptr) {
      steps_begun_ = sync_->peek(sync_->rank(), kDoneSlot);
      base_ = sync_->peek(sync_->rank(), kFilledSlot);
    }
  }

  void begin(int64_t step) override {
    step_ = step;
    base_ += posted_;  // every bucket of the step before
    ++steps_begun_;
    complete_.assign(complete_.size(), false);
    posted_ = worked_ = 0;
  }

  void completed(size_t bucket) override {
    complete_[bucket] = true;
    const size_t before = posted_;
    while (posted_ < complete_.size() && complete_[posted_]) ++posted_;
    if (posted_ == before) return;
    if (sync_ != nullptr) sync_->post(kFilledSlot, base_ + posted_);
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
    sync_->post(kDoneSlot, steps_begun_);
    for (int r = 0; r < sync_->size(); ++r) {
      if (r != sync_->rank())
        sync_->wait(r, kDoneSlot, steps_begun_, fmt::format("the update of step {}", step_));
    }
    return to_seconds(clock_.now() - start);
  }

 private:
  bool all_have(size_t bucket) const {
    if (sync_ == nullptr) return true;
    for (int r = 0; r < sync_->size(); ++r) {
      if (r != sync_->rank() && sync_->peek(r, kFilledSlot) < base_ + bucket + 1) return false;
    }
    return true;
  }

  // Returns the rank that came last (of those that were late when we looked, the last one waited for).
  int wait_for_bucket(size_t bucket) {
    int slowest = -1;
    for (int r = 0; r < sync_->size(); ++r) {
      if (r == sync_->rank() || sync_->peek(r, kFilledSlot) >= base_ + bucket + 1) continue;
      sync_->wait(r, kFilledSlot, base_ + bucket + 1,
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
  uint64_t base_ = 0;  // buckets of all earlier steps
  uint64_t steps_begun_ = 0;
  size_t posted_ = 0, worked_ = 0;
};

}  // namespace

std::unique_ptr<BucketExchange> make_host_exchange(Group& group, const Clock& clock, size_t buckets,
                                                   BucketWork work) {
  return std::make_unique<HostExchange>(group, clock, buckets, std::move(work));
}

}  // namespace starling
