// The table at the end of a run, computed from RunResult only.
#pragma once

#include <string>

#include "starling/telemetry/event.h"

namespace starling {

// Returns several lines, each with a newline. Values that were not measured are left out. Times are
// percentages of the wall time on the leading rank. "other" is the rest of the wall time, such as evaluations
// and checkpoints. Of a resumed run, the summary says which values count since the run resumed.
std::string summary(const RunResult& result, bool color);

}  // namespace starling
