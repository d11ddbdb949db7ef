// Which settings of a run cannot be combined with an exchange whose ranks average at their own times, in
// pairs (ExchangeTraits::pairs) or with a center (ExchangeTraits::center).
#pragma once

#include <optional>

#include "starling/spec/refusal.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the first reason why the ranks of the run cannot average so: replicas that several ranks compute
// together, or for pairs a graph that is not bipartite. Nothing if there is none, or for other exchanges.
std::optional<Refusal> pair_refusal(const RunSpec& spec);

}  // namespace starling
