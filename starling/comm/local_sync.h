// LocalSync: growing numbers that the ranks of one host show each other, for a strategy's own protocol: "bucket 3 of
// step 812 lies in my window". Each rank owns kSlots slots, each in a cache line of its own, 0 at first.
#pragma once

#include <cstdint>
#include <string>

namespace starling {

// Ranks here are local ranks: positions in Group::local_ranks(). Thread-safe; a slot has one posting thread at a time.
// Independent of the collectives and of their order. The slots are shared by all users of the group: agree on them.
class LocalSync {
 public:
  static constexpr int kSlots = 64;
  virtual ~LocalSync() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Publishes `value` (not less than before) in this rank's slot. What this rank wrote to memory before is visible to
  // every rank that has seen the value.
  virtual void post(int slot, uint64_t value) = 0;
  // The value that `rank` posted last, without waiting.
  virtual uint64_t peek(int rank, int slot) const = 0;
  // Waits until `rank` has posted at least `value`. `what` names the wait in errors, e.g. "bucket 3 of step 812".
  // TimeoutError after GroupOptions::timeout naming the rank, CommError when it died or the group was aborted.
  virtual void wait(int rank, int slot, uint64_t value, const std::string& what) = 0;
};

}  // namespace starling
