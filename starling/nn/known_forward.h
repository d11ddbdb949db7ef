// Calls modules of libtorch's own classes. torch::nn::Module has no virtual forward function, so a module can
// only be called through its class.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "starling/nn/module_blocks.h"

namespace starling {

// Returns the forward function of a module whose class is one of libtorch's layers or starling's. The
// function takes and returns one tensor. Returns an empty function for any other class, also for one that is
// derived from such a layer, because its forward function may differ.
BlockFunction known_forward(const std::shared_ptr<torch::nn::Module>& module);

}  // namespace starling
