// FireCaffe's curve measured: `starling bench comm` between 2, 4 and 8 processes over TCP, each behind an emulated link.
#pragma once

#include <string>

#include "starling/report/comparison.h"

namespace starling {

// Fills comparison.exchanges and their unit: an all-reduce of `bytes` by star, binomial tree and ring. About three seconds for each
// number of ranks. A measurement that fails is left out. program: argv[0].
void measure_exchanges(Comparison& comparison, double bytes, const std::string& program);

}  // namespace starling
