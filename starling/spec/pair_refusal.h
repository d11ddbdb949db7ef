// Which settings of a run cannot be combined with an exchange whose ranks average at their own times. They
// average in pairs (ExchangeTraits::pairs) or with a center (ExchangeTraits::center).
#pragma once

#include <optional>

#include "starling/spec/refusal.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the first reason why the ranks of the run cannot average so. One reason is a replica that several
// ranks compute together. Another one, for pairs, is a graph that is not bipartite. Returns nothing if there
// is no reason, or for other exchanges.
std::optional<Refusal> pair_refusal(const RunSpec& spec);

}  // namespace starling
