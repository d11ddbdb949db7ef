// Measures how the time of an all-reduce grows with the number of ranks, as in Iandola et al., "FireCaffe",
// CVPR 2016. The measurement is `starling bench comm` between 2, 4 and 8 processes over TCP, each behind an
// emulated link.
#pragma once

#include <string>

#include "starling/report/comparison.h"

namespace starling {

// Fills comparison.exchanges and their unit with the times of an all-reduce of `bytes` by star, binomial tree
// and ring. `program` is argv[0]. The measurement takes about three seconds for each number of ranks. If it
// fails for a number of ranks, the result leaves that number out.
void measure_exchanges(Comparison& comparison, double bytes, const std::string& program);

}  // namespace starling
