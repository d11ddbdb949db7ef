// Which settings of a run teams of workers cannot be combined with (exchange.team).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// Why the settings are refused.
struct TeamRefusal {
  std::vector<std::string_view> keys;  // the settings that contradict each other
  std::string text;                    // the reason, and what to write instead
};

// Returns the first reason why the ranks of the run cannot form teams. Nothing if there is none, or if
// exchange.team is 1 or is not read.
std::optional<TeamRefusal> team_refusal(const RunSpec& spec);

}  // namespace starling
