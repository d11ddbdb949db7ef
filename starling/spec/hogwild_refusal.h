// Which settings of a run threads without locks cannot be combined with (train.threads_mode = "hogwild").
#pragma once

#include <optional>

#include "starling/spec/refusal.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the first reason why the threads of a rank cannot train without locks. Reasons are an exchange that
// needs the gradient of a step, an optimizer with states, and a setting that needs whole steps. Returns
// nothing if there is no reason, or with another train.threads_mode.
std::optional<Refusal> hogwild_refusal(const RunSpec& spec);

}  // namespace starling
