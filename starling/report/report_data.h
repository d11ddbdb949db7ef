// The numbers of a comparison as JSON. The report holds them, and its script saves them as CSV
// (report_script.h).
#pragma once

#include <string>

#include "starling/report/comparison.h"

namespace starling {

// Returns a JSON object:
//   {"title", "smoothing_steps", "runs": [{the fields of to_json(Compared), "curve", "evaluations"}]}
//
// curve: {"step", "samples", "seconds", "bytes", "loss", "average"}, columns of equal length. If a run has
// more than 2000 steps, every k-th step is kept, and the last.
//
// evaluations: {"step", "samples", "seconds", "bytes", "loss", "accuracy"}, columns of equal length.
//
// Numbers have six significant digits; steps and samples are exact. A number that is not finite is null. The
// text contains no "<", so that it can stand inside a <script> element.
std::string report_data(const Comparison& comparison);

}  // namespace starling
