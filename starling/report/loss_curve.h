// Loss curves: the raw losses of a run, and their trailing exponential average.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/report/run_record.h"

namespace starling {

// Returns the number of steps over which a report averages. It is the largest of 1, 2, 5, 10, … 1000 that is
// at most a sixteenth of the steps of the longest run. 1 means that the report shows raw losses only.
int64_t smoothing_steps(size_t longest_run);

// Returns the weight of the newest loss in an average of about N steps: 2 / (N + 1). The losses in the
// average then have the same mean age as in a plain mean of the last N losses.
double smoothing_weight(int64_t steps);

// Returns `points` with each loss replaced by the trailing average of the losses up to it:
//
//   a_k = (1 − w) a_{k−1} + w x_k,   y_k = a_k / (1 − (1 − w)^k),   a_0 = 0,   w = smoothing_weight(steps)
//
// The divisor makes y_1 = x_1. A loss that is not finite stays as it is and does not enter the average.
std::vector<RunPoint> smoothed(const std::vector<RunPoint>& points, int64_t steps);

// Returns at most `count` of the points: the last of each of `count` equal intervals of the run.
std::vector<RunPoint> sampled(const std::vector<RunPoint>& points, size_t count);

// Returns at most 2 · `count` of the points: those with the least and the greatest loss of each of `count`
// equal intervals. Points whose loss is not finite are left out.
std::vector<RunPoint> extremes(const std::vector<RunPoint>& points, size_t count);

}  // namespace starling
