// FireCaffe's curve (Iandola et al. 2016, section 5): time of one exchange of gradients by the number of ranks, in units of
// |W| / bandwidth of a link, where communication is all there is:
//   star  p               every rank's gradient passes the server's one link
//   tree  2 log2 p        up the tree and down again
//   ring  2 (p − 1) / p   reduce-scatter and all-gather, all links at work at once
#pragma once

#include <string>

#include "starling/report/comparison.h"
#include "starling/report/line_chart.h"

namespace starling {

double star_time(int ranks);
double tree_time(int ranks);
double ring_time(int ranks);

// The three formulas up to 128 ranks, and what was measured, in the same unit.
LineChart exchange_chart(const Comparison& comparison);
std::string exchange_caption(const Comparison& comparison);

}  // namespace starling
