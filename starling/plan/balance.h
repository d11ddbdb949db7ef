// Cuts a list of blocks into consecutive stages of nearly equal cost.
#pragma once

#include <cstddef>
#include <vector>

namespace starling {

// Returns where each stage begins. Stage s has the blocks [result[s], result[s + 1]). The result has stages +
// 1 entries; the first is 0 and the last is costs.size(). No stage is empty. The largest cost of a stage is
// the smallest possible. Among such cuts, the result has the smallest Σ (cost of a stage)². Costs are ≥ 0, in
// any unit. The time is O(stages · blocks²). Errors: ConfigError (--mesh) for more stages than blocks, or for
// stages < 1.
std::vector<size_t> balance_stages(const std::vector<double>& costs, int stages);

}  // namespace starling
