// Which settings of the optimizer the run cannot combine with its other settings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/config.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Why the settings of the optimizer are refused.
struct OptimizerRefusal {
  std::vector<std::string_view> keys;  // the settings that contradict each other, that of the optimizer first
  std::string text;                    // the reason, and what to write instead
};

// Returns the first reason why optimizer.nesterov or optimizer.clip_value cannot have its effect. Nothing if
// the run does without them or can have them.
std::optional<OptimizerRefusal> optimizer_refusal(const RunSpec& spec, const Origins& origins);

}  // namespace starling
