// Compares the blocks of a model with its forward function.
#pragma once

#include "starling/nn/model.h"

namespace starling {

// Checks that the blocks of `model`, one after another, compute what model.forward computes of `inputs`, and
// that each block uses its own parameters only. The model should be in training mode; both computations draw
// the same random numbers from torch's CPU generator. The model must not be used for training afterwards,
// because every parameter requires a gradient from then on. Errors: ConfigError that names the first
// operation that differs and its block, or the block that fails. ConfigError that names the parameter of
// another block if a block uses such a parameter. c10::Error if model.forward fails.
void check_blocks(const Model& model, const Tensors& inputs);

}  // namespace starling
