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

// Returns whether each tensor has a learning rate that depends on its norm: lars and lamb.
bool has_rates_of_tensors(const OptimizerSpec& spec);

// Returns whether the update of an element depends on the tensor that the element belongs to: lars, lamb, and
// optimizer.exempt_vectors with a weight decay.
bool updates_by_tensor(const OptimizerSpec& spec);

// Returns the first reason why optimizer.nesterov, optimizer.clip_value, an update by tensor or
// optimizer.ema_decay cannot have its effect. Nothing if the run does without them or can have them.
std::optional<OptimizerRefusal> optimizer_refusal(const RunSpec& spec, const Origins& origins);

}  // namespace starling
