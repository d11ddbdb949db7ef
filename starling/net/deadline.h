// Deadlines: every wait of this layer ends at one.
#pragma once

#include <algorithm>
#include <chrono>

namespace starling {

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline deadline_in(std::chrono::milliseconds wait) {
  return std::chrono::steady_clock::now() + wait;
}

// Milliseconds until `deadline`, rounded up, for poll(2): 0 when it has passed, a minute at most.
inline int poll_timeout(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<long long>(left.count(), 0, 60'000));
}

inline bool has_passed(Deadline deadline) {
  return std::chrono::steady_clock::now() >= deadline;
}

}  // namespace starling
