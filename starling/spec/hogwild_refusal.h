// Which settings of a run threads without locks cannot be combined with (train.threads_mode = "hogwild").
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// Why the settings are refused.
struct HogwildRefusal {
  std::vector<std::string_view> keys;  // the settings that contradict each other
  std::string text;                    // the reason, and what to write instead
};

// Returns the first reason why the threads of a rank cannot train without locks. Reasons are an exchange that
// needs the gradient of a step, an optimizer with states, and a setting that needs whole steps. Returns
// nothing if there is no reason, or with another train.threads_mode.
std::optional<HogwildRefusal> hogwild_refusal(const RunSpec& spec);

}  // namespace starling
