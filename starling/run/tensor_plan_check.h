// Checks that a model that a tensor plan shards computes the outputs and gradients of the whole model.
#pragma once

#include "starling/run/strategies.h"

namespace starling {

// Computes parts.program.sample() by the whole model and by the ranks of the tensor axis together, in
// evaluation mode. Also checks that the ranks draw equally many random numbers in training mode. Does nothing
// without a plan. Collective over the tensor axis. Errors: ConfigError if outputs, gradients or the numbers
// drawn differ or the sharded model cannot be computed, and those of shard_model().
void check_tensor_plan(const StrategyParts& parts);

}  // namespace starling
