// Cutting a list of blocks into consecutive stages of near-equal cost.
#pragma once

#include <cstddef>
#include <vector>

namespace starling {

// Where each stage begins: stage s is the blocks [result[s], result[s + 1]), result has stages + 1 entries, the first 0 and
// the last costs.size(). No stage is empty. The largest sum of costs over a stage is the smallest possible; among such
// cuts the one whose Σ (stage's cost)² is smallest. Costs are ≥ 0, in any unit. Time O(stages · blocks²).
// Errors: ConfigError (--mesh) for more stages than blocks, or stages < 1.
std::vector<size_t> balance_stages(const std::vector<double>& costs, int stages);

}  // namespace starling
