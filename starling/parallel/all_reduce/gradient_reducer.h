// GradientReducer tracks which buckets of gradients are complete on this rank and on its peers, and runs the
// work on complete buckets. It makes all-reduce data parallelism overlap with backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "starling/base/clock.h"
#include "starling/comm/group.h"

namespace starling {

// Reduces the buckets of each step. All ranks must complete the same buckets, in any order; the work runs in
// the order of the buckets. Not thread-safe: one thread must make all calls.
class GradientReducer {
 public:
  virtual ~GradientReducer() = default;
  // Starts a new step, in which no bucket is complete.
  virtual void begin(int64_t step) = 0;
  // Reports that this rank's gradients of `bucket` are complete and in place.
  virtual void completed(size_t bucket) = 0;
  // What finish() found.
  struct Finish {
    double waited_s = 0;  // time spent waiting without computing
    // The local rank whose gradients came last. -1 if there was no wait, or if there are several hosts.
    int slowest_local = -1;
  };
  // Returns when this rank has done the work on every bucket.
  virtual Finish finish() = 0;
  // Waits until every rank of this host has done its work, so that no rank reads gradients or writes
  // parameters any more. The reducer for several hosts waits for every rank of the group. Returns the seconds
  // waited.
  virtual double wait_for_all() = 0;
};

// Work on one bucket. It is called once for each bucket of a step, in order, when this rank can work on its
// share of the bucket.
using BucketWork = std::function<void(size_t bucket)>;

// Makes a reducer for ranks on one host. It has no thread of its own. Whenever this rank completes a bucket,
// the reducer checks without waiting which buckets all ranks have completed, and runs the work on them.
// finish() waits for all other buckets. `group` may have a single rank.
std::unique_ptr<GradientReducer> make_host_reducer(Group& group, const Clock& clock, size_t buckets,
                                                   BucketWork work);

// Makes a reducer for ranks on several hosts. Its thread reduces each bucket by `reduce`, which sums over all
// ranks, and then runs `work`, while backward continues. Both callbacks run on that thread. finish() rethrows
// their exceptions.
std::unique_ptr<GradientReducer> make_network_reducer(Group& group, const Clock& clock, size_t buckets,
                                                      BucketWork reduce, BucketWork work);

}  // namespace starling
