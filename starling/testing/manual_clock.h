// ManualClock: stands still until a test advances it. For one thread.
#pragma once

#include "starling/base/clock.h"

namespace starling {

class ManualClock final : public Clock {
 public:
  Nanoseconds now() const override { return now_; }
  void advance(Nanoseconds by) { now_ += by; }

 private:
  Nanoseconds now_{};
};

}  // namespace starling
