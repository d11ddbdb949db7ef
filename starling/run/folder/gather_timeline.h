// Gathers what the ranks of a pipeline did in the last step. report/timeline.h writes it into timeline.json.
#pragma once

#include "starling/parallel/pipeline/traced.h"
#include "starling/report/timeline.h"

namespace starling {

// Collective. Returns what the ranks did in the last step, complete on rank 0.
StepTimeline gather_timeline(Traced& traced);

}  // namespace starling
