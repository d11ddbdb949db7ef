// The file timeline.json of a run: what the ranks of a pipeline did in the last step.
#pragma once

#include "starling/parallel/pipeline/traced.h"
#include "starling/report/timeline.h"

namespace starling {

// Collective. Returns what the ranks did in the last step, complete on rank 0.
StepTimeline gather_timeline(Traced& traced);

}  // namespace starling
