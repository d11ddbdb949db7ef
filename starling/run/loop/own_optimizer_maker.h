// Makes the optimizers that FitOptions asks for.
#pragma once

#include <torch/nn/module.h>

#include "starling/parallel/replica/own_optimizer.h"
#include "starling/spec/run_spec.h"
#include "starling/train/fit_options.h"

namespace starling {

// Returns what makes the optimizer of the options: that of FitOptions::optimizer(), or that of the
// configuration with the groups of FitOptions::group(). Returns an empty function if the options ask for
// neither. Errors: ConfigError if they ask for both, or if the configuration cannot train by an own
// optimizer. The function throws ConfigError if the optimizer cannot train a part of the model that this rank
// holds.
OwnOptimizerMaker own_optimizer_of(const FitOptions& options, const RunSpec& spec);

// Throws ConfigError for a pattern of FitOptions::group() if every parameter that it matches belongs to an
// earlier group, or if it matches none. Parameters without a gradient do not count.
void require_groups_match(const FitOptions& options, const torch::nn::Module& module);

}  // namespace starling
