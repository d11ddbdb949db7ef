// The charts of a section of the report: training loss against time, samples and bytes, and test accuracy
// against time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/report/comparison.h"
#include "starling/report/line_chart.h"

namespace starling {

// Returns the number of steps over which the report averages the losses of all runs (loss_curve.h).
int64_t smoothing_steps(const Comparison& comparison);

// Returns a sentence that explains the bold and the faint lines. The text is empty if losses are not
// averaged.
std::string smoothing_note(int64_t steps);

// Returns the color and legend button of the run at `place` of a picture. 0 is the neutral color of the first
// run.
int color_of(const Picture& picture, size_t place);

// Returns the charts of a picture. Charts without a line are left out: a single rank sends no bytes, and a
// text has no accuracy. Accuracy has a chart only if a run was evaluated more than once.
std::vector<LineChart> curve_charts(const Comparison& comparison, const Picture& picture);

}  // namespace starling
