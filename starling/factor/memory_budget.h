// MemoryBudget counts the bytes that a rank holds, where they are allocated, and enforces a limit. The
// containers below are counted. They hold everything whose size depends on the matrix. The program itself is
// not counted, nor are the windows and messages of the group (pieces of 64 KiB, factor/rotation.cc).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "starling/base/error.h"

namespace starling {

// Counts bytes up to a limit. One thread uses it. It must outlive everything that is counted in it.
class MemoryBudget {
 public:
  // limit: bytes. 0: no limit.
  explicit MemoryBudget(size_t limit = 0) : limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Counts bytes before their allocation. Errors: Error(kMemory) if they would exceed the limit.
  void take(size_t bytes) {
    if (limit_ > 0 && held_ + bytes > limit_) {
      throw Error(ErrorCode::kMemory, fmt::format("{} more bytes would exceed the limit of {} bytes per "
                                                  "rank, of which {} are in use: use more ranks, "
                                                  "fewer factors, or a larger --memory-limit",
                                                  bytes, limit_, held_));
    }
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  // Counts bytes as freed.
  void give(size_t bytes) { held_ -= bytes; }

  // Returns the bytes that are held now.
  size_t held() const { return held_; }
  // Returns the most bytes that were held at once.
  size_t peak() const { return peak_; }
  // Returns the limit.
  size_t limit() const { return limit_; }

 private:
  size_t limit_;
  size_t held_ = 0;
  size_t peak_ = 0;
};

// A standard allocator that counts in a budget.
template <typename T>
class CountedAllocator {
 public:
  using value_type = T;
  explicit CountedAllocator(MemoryBudget& budget) : budget_(&budget) {}
  template <typename U>
  CountedAllocator(const CountedAllocator<U>& other) : budget_(other.budget()) {}

  // Allocates n elements. Errors: Error(kMemory).
  T* allocate(size_t n) {
    budget_->take(n * sizeof(T));
    return std::allocator<T>().allocate(n);
  }
  // Frees n elements.
  void deallocate(T* p, size_t n) {
    std::allocator<T>().deallocate(p, n);
    budget_->give(n * sizeof(T));
  }
  // Returns the budget.
  MemoryBudget* budget() const { return budget_; }
  template <typename U>
  bool operator==(const CountedAllocator<U>& other) const {
    return budget_ == other.budget();
  }

 private:
  MemoryBudget* budget_;
};

// A vector whose bytes are counted: Counted<float> values(count, CountedAllocator<float>(budget)).
template <typename T>
using Counted = std::vector<T, CountedAllocator<T>>;

}  // namespace starling
