// ManualClock: a clock that stands still until a test advances it.
#pragma once

#include "starling/base/clock.h"

namespace starling {

// ManualClock may be used by one thread.
class ManualClock final : public Clock {
 public:
  // Returns the current time, 0 at first.
  Nanoseconds now() const override { return now_; }
  // Advances the clock.
  void advance(Nanoseconds by) { now_ += by; }

 private:
  Nanoseconds now_{};
};

}  // namespace starling
