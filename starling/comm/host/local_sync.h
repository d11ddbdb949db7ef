// LocalSync: counters that the ranks of one host show each other. A strategy builds its own protocol on them,
// for example "bucket 3 of step 812 lies in my window".
//
// Each rank owns kCounters counters. Each counter lies in a cache line of its own and is 0 at first. A
// parameter `counter` is the index of a counter.
#pragma once

#include <cstdint>
#include <string>

namespace starling {

// LocalSync gives access to the counters. Ranks are local ranks here: positions in Group::local_ranks().
//
// The counters are independent of the collectives and of their order. All users of a group share them and
// must agree on their use.
// Threads: it is thread-safe. Only one thread at a time may post to a counter.
class LocalSync {
 public:
  static constexpr int kCounters = 64;  // counters per rank
  virtual ~LocalSync() = default;
  // This rank's position among the ranks of its host.
  virtual int rank() const = 0;
  // The number of ranks of the host.
  virtual int size() const = 0;
  // Sets this rank's counter to `value`, which must not be smaller than before.
  // A rank that has seen the value also sees what this rank wrote to memory before.
  virtual void post(int counter, uint64_t value) = 0;
  // Returns the last value that `rank` has posted. It does not wait.
  virtual uint64_t peek(int rank, int counter) const = 0;
  // Waits until `rank` has posted at least `value`. `what` names the wait in errors, for example "bucket 3 of
  // step 812".
  // Errors: TimeoutError that names the rank, after GroupOptions::timeout; CommError if the rank died or the
  // group was aborted.
  virtual void wait(int rank, int counter, uint64_t value, const std::string& what) = 0;
};

}  // namespace starling
