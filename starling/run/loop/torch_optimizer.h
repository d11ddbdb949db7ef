// Adapts an optimizer of libtorch for a strategy (parallel/replica/own_optimizer.h).
#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <vector>

#include "starling/parallel/replica/own_optimizer.h"
#include "starling/parallel/replica/replica.h"

namespace starling {

// Returns an adapter of `optimizer`, which must outlive it. Its state is what torch::save() writes.
std::shared_ptr<OwnOptimizer> adapt_optimizer(torch::optim::Optimizer& optimizer);

// Returns an adapter that owns the optimizer.
std::shared_ptr<OwnOptimizer> adapt_optimizer(std::unique_ptr<torch::optim::Optimizer> optimizer);

// Makes the optimizer update `copies` in place of its parameters from now on. copies: by parameter. The
// states of libtorch's Adagrad follow its parameters. Errors: ConfigError if another optimizer has states of
// earlier steps.
void replace_parameters(torch::optim::Optimizer& optimizer,
                        const std::map<const c10::TensorImpl*, at::Tensor>& copies);

// Returns the parameters of `module` that are in a group of the optimizer and require a gradient, with their
// names. Errors: ConfigError if the optimizer has a parameter that is not the module's.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module,
                                       const torch::optim::Optimizer& optimizer);

}  // namespace starling
