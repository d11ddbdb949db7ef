// Which settings of a run an exchange of asynchronous pairs cannot be combined with (ExchangeTraits::pairs).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// Why the settings are refused.
struct PairRefusal {
  std::vector<std::string_view> keys;  // the settings that contradict each other
  std::string text;                    // the reason, and what to write instead
};

// Returns the first reason why the exchange of the run cannot form pairs: a graph that is not bipartite, or
// replicas that several ranks compute together. Nothing if there is none, or if the exchange has no pairs.
std::optional<PairRefusal> pair_refusal(const RunSpec& spec);

}  // namespace starling
