// The time of one exchange of gradients among p ranks, as FireCaffe predicts it (Iandola et al. 2016).
//
// The unit is |W| / bandwidth: the bytes of the gradients divided by the bandwidth of one link. Latency is
// left out.
//   star  p               the gradients of all ranks pass the one link of the server
//   tree  2 log2 p        reduction to the root, then broadcast
//   ring  2 (p − 1) / p   reduce-scatter, then all-gather; all links carry data at the same time
#pragma once

#include <string>

#include "starling/report/comparison.h"
#include "starling/report/line_chart.h"

namespace starling {

// Each function returns the time of one algorithm in the unit above.
double star_time(int ranks);
double tree_time(int ranks);
double ring_time(int ranks);

// Returns the chart of the three formulas for 2 to 128 ranks, with the comparison's measured times in the
// unit above.
LineChart exchange_chart(const Comparison& comparison);
// Returns the text that explains the chart.
std::string exchange_caption(const Comparison& comparison);

}  // namespace starling
