// The ranks of `starling place` agree to end after a signal.
#pragma once

#include "starling/run/run_environment.h"

namespace starling {

// Returns true on all ranks if a signal has reached one of them, or if `ended` is true on one of them.
// Collective.
bool is_stopped(const RunEnvironment& environment, bool ended = false);

}  // namespace starling
