// MemoryBudget: how many bytes a rank holds, counted where they are allocated, and a limit that no allocation passes. Counted are
// the containers below, which hold everything of a size that depends on the matrix; not the program itself, nor the windows and
// messages of the group (pieces of 64 KiB, rotation.h).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "starling/base/error.h"

namespace starling {

// One thread. Outlives everything that is counted in it.
class MemoryBudget {
 public:
  // limit: bytes; 0 = none, counted only.
  explicit MemoryBudget(size_t limit = 0) : limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Error(kMemory) where it would pass the limit.
  void take(size_t bytes) {
    if (limit_ > 0 && held_ + bytes > limit_) {
      throw Error(
          ErrorCode::kMemory,
          fmt::format(
              "{} bytes more would pass the limit of {} bytes a rank, of which {} are held: use more ranks, "
              "fewer factors, or a larger --memory-limit",
              bytes, limit_, held_));
    }
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  void give(size_t bytes) { held_ -= bytes; }

  size_t held() const { return held_; }
  size_t peak() const { return peak_; }
  size_t limit() const { return limit_; }

 private:
  size_t limit_;
  size_t held_ = 0;
  size_t peak_ = 0;
};

template <typename T>
class CountedAllocator {
 public:
  using value_type = T;
  explicit CountedAllocator(MemoryBudget& budget) : budget_(&budget) {}
  template <typename U>
  CountedAllocator(const CountedAllocator<U>& other) : budget_(other.budget()) {}

  T* allocate(size_t n) {
    budget_->take(n * sizeof(T));
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, size_t n) {
    std::allocator<T>().deallocate(p, n);
    budget_->give(n * sizeof(T));
  }
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
