// Reads averaged weights (optimizer.ema_decay) from the state of a strategy.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "starling/parallel/strategy.h"

namespace starling {

// Returns the averaged weights by parameter. `optimizer` is that of a StrategyState ("ema/fc1.weight"). If
// each rank has an average of its own ("ema@1/fc1.weight"), the result is their mean. The mean of equal
// averages has their bits. Empty if the state has no averaged weights.
std::map<std::string, at::Tensor> averaged_weights(const std::map<std::string, at::Tensor>& optimizer);

// Returns the state with its averaged weights as parameters.
StrategyState with_averaged_weights(StrategyState state);

}  // namespace starling
