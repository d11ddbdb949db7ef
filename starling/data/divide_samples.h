// Divides the samples of a step among ranks of unequal speed (data.share).
#pragma once

#include <cstdint>
#include <vector>

namespace starling {

// Returns the number of samples of each rank. The numbers add up to `samples` and are proportional to `parts`
// up to rounding by the largest remainder. Of equal remainders, that of the lower rank wins. A rank that
// would have fewer than `least` samples has `least`, and the ranks that have most above their part give them.
// If there are fewer than `least` samples per rank, `least` does not count. All parts are above 0, and there
// is at least one.
//
// The result is a function of the arguments, and so equal on every rank. If the parts are whole numbers that
// add up to `samples`, the result is the parts.
std::vector<int64_t> divide_samples(int64_t samples, const std::vector<double>& parts, int64_t least = 1);

}  // namespace starling
