// Which settings of the optimizer the run cannot combine with its other settings.
#pragma once

#include <optional>

#include "starling/spec/config.h"
#include "starling/spec/refusal.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns whether each tensor has a learning rate that depends on its norm: lars and lamb.
bool has_rates_of_tensors(const OptimizerSpec& spec);

// Returns whether the update of an element depends on the tensor that the element belongs to: lars, lamb, and
// optimizer.exempt_vectors with a weight decay.
bool updates_by_tensor(const OptimizerSpec& spec);

// Returns the first reason why optimizer.nesterov, optimizer.clip_value, an update by tensor or
// optimizer.ema_decay cannot have its effect. The setting of the optimizer is its first key. Nothing if the
// run does without them or can have them.
std::optional<Refusal> optimizer_refusal(const RunSpec& spec, const Origins& origins);

}  // namespace starling
