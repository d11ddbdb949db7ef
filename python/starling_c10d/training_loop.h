// Binds LoopStrategy (starling/parallel/loop_strategy.h) for starling.DistributedOptimizer
// (python/starling/distributed_optimizer.py).
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace starling {

// Adds the class TrainingLoop to the module.
void bind_training_loop(pybind11::module_& module);

}  // namespace starling
