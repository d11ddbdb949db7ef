// Clock is passed to the code that needs the time, so that tests and simulations can supply their own time.
#pragma once

#include <chrono>

namespace starling {

using Nanoseconds = std::chrono::nanoseconds;

// A monotonic clock. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Returns the time since an arbitrary, fixed start.
  virtual Nanoseconds now() const = 0;
};

// The monotonic clock of the system.
class SystemClock final : public Clock {
 public:
  Nanoseconds now() const override {
    return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now().time_since_epoch());
  }
};

// Returns the time in seconds.
inline double to_seconds(Nanoseconds t) {
  return std::chrono::duration<double>(t).count();
}

}  // namespace starling
