// Which settings of a run an exchange of asynchronous pairs cannot be combined with (ExchangeTraits::pairs).
#pragma once

#include <optional>

#include "starling/spec/refusal.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the first reason why the exchange of the run cannot form pairs: a graph that is not bipartite, or
// replicas that several ranks compute together. Nothing if there is none, or if the exchange has no pairs.
std::optional<Refusal> pair_refusal(const RunSpec& spec);

}  // namespace starling
