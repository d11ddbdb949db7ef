// Time as a value that is passed down, so that tests and the simulator can supply their own.
#pragma once

#include <chrono>

namespace starling {

using Nanoseconds = std::chrono::nanoseconds;

// Monotonic time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary, fixed start.
  virtual Nanoseconds now() const = 0;
};

class SystemClock final : public Clock {
 public:
  Nanoseconds now() const override {
    return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now().time_since_epoch());
  }
};

inline double to_seconds(Nanoseconds t) {
  return std::chrono::duration<double>(t).count();
}

}  // namespace starling
