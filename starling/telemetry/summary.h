// The table at the end of a run, made from RunResult alone.
#pragma once

#include <string>

#include "starling/telemetry/event.h"

namespace starling {

// Several lines, each ended by a newline. What was not measured is not shown. The shares of time are of the
// wall time on rank 0; what is neither computation, communication nor waiting for data (start-up, evaluation,
// checkpoints) is "other".
std::string summary(const RunResult& result, bool color);

}  // namespace starling
