// BucketExchange: which buckets of gradients are complete, here and at the peers, and the work that may be done on them
// meanwhile. This is the part of all-reduce data parallelism that overlaps with backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "starling/base/clock.h"
#include "starling/comm/group.h"

namespace starling {

// All ranks complete the same buckets, in any order; the work is done in bucket order. Driven by one thread.
class BucketExchange {
 public:
  virtual ~BucketExchange() = default;
  // A new step begins: no bucket is complete.
  virtual void begin(int64_t step) = 0;
  // This rank's gradients of `bucket` lie in place.
  virtual void completed(size_t bucket) = 0;
  struct Finish {
    double waited_s = 0;     // nothing was computed meanwhile
    int slowest_local = -1;  // the local rank whose gradients came last, -1 when nobody was waited for
  };
  // Returns when the work on every bucket has been done by this rank.
  virtual Finish finish() = 0;
  // Returns when every rank of this host has done its work: nobody reads gradients or writes parameters any more.
  // Returns the seconds waited.
  virtual double wait_for_all() = 0;
};

// Called once for each bucket of a step, in order, when its gradients are ready for this rank's share of the work.
using BucketWork = std::function<void(size_t bucket)>;

// All ranks on one host: no thread of its own. Whenever this rank completes a bucket it looks, without waiting, which
// buckets all ranks have completed, and works on them; finish() waits for the rest. `group` may have a single rank.
std::unique_ptr<BucketExchange> make_host_exchange(Group& group, const Clock& clock, size_t buckets,
                                                   BucketWork work);

// Several hosts: a thread all-reduces (sums) bucket after bucket by `reduce`, then works on it, while backward goes on.
// reduce and work run on that thread; an exception of theirs comes out of finish().
std::unique_ptr<BucketExchange> make_network_exchange(Group& group, const Clock& clock, size_t buckets,
                                                      BucketWork reduce, BucketWork work);

}  // namespace starling
