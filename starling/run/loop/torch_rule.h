// The optimizers of libtorch on parameter servers: SGD, Adam, AdamW, Adagrad and RMSprop with any options and
// groups of parameters. A worker describes its optimizer (server/service_settings.h), and a server makes
// an equal one for each partition, whose states are in the memory of the shard.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "starling/comm/types.h"
#include "starling/parallel/replica/replica.h"
#include "starling/server/partition_rule.h"
#include "starling/server/service_settings.h"

namespace starling {

// Returns whether this is libtorch's own SGD, Adam, AdamW, Adagrad or RMSprop, and no class derived from it.
// They update each element by itself.
bool is_known_optimizer(const torch::optim::Optimizer& optimizer);

// Returns the settings of an optimizer. parameters: those of the optimizer, in the order of the module.
// Returns nothing for an optimizer of another class, or if the first of several groups has the rate 0.
// Errors: ConfigError that names the first parameter that the optimizer does not hold. The options of a group
// are:
//
//   sgd          lr, momentum, weight decay, dampening, nesterov
//   adam, adamw  lr, beta 1, beta 2, eps, weight decay, amsgrad
//   adagrad      lr, lr decay, weight decay, initial accumulator, eps
//   rmsprop      lr, alpha, eps, weight decay, momentum, centered
std::optional<TorchSettings> torch_settings(const torch::optim::Optimizer& optimizer,
                                            const std::vector<NamedTensor>& parameters);

// Returns what makes the updates of a shard. settings.group_of has the group of each partition. type: kFp32
// or kFp64. Errors: CommError for settings that no worker announces.
std::unique_ptr<PartitionRule> make_torch_rule(const TorchSettings& settings, DataType type);

}  // namespace starling
