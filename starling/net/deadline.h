// Deadlines. Every wait of this layer ends at a deadline.
#pragma once

#include <algorithm>
#include <chrono>

namespace starling {

// The time at which a wait ends.
using Deadline = std::chrono::steady_clock::time_point;

// Returns the deadline that is `wait` from now.
inline Deadline deadline_in(std::chrono::milliseconds wait) {
  return std::chrono::steady_clock::now() + wait;
}

// Returns the milliseconds until `deadline` for poll(2), rounded up: 0 if it has passed, a minute at most.
inline int poll_timeout(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<long long>(left.count(), 0, 60'000));
}

// Returns whether the deadline has passed.
inline bool has_passed(Deadline deadline) {
  return std::chrono::steady_clock::now() >= deadline;
}

}  // namespace starling
