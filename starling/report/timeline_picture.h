// The step of a pipeline as SVG: one row per rank with its forwards and backwards, first as planned, then as
// measured. Both parts have the same time scale.
#pragma once

#include <string>

#include "starling/report/timeline.h"

namespace starling {

// Returns the picture as an <svg> element, or an empty string if no action takes time. Errors: those of
// planned_step().
std::string svg_of(const StepTimeline& measured);

}  // namespace starling
