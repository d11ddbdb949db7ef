// Which settings of a run teams of workers cannot be combined with (exchange.team).
#pragma once

#include <optional>

#include "starling/spec/refusal.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the first reason why the ranks of the run cannot form teams. Nothing if there is none, or if
// exchange.team is 1 or is not read.
std::optional<Refusal> team_refusal(const RunSpec& spec);

}  // namespace starling
