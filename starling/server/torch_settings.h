// TorchSettings describes an optimizer of libtorch to the servers (run/loop/torch_rule.h).
#pragma once

#include <string>
#include <vector>

namespace starling {

// The settings of an optimizer of libtorch that is no update rule (optim/update_rule.h).
struct TorchSettings {
  std::string name;  // sgd adam adamw adagrad rmsprop; empty: the update rule is used
  // By group of parameters: its options, in the order that run/loop/torch_rule.h gives. The first one is the
  // learning rate.
  std::vector<std::vector<double>> groups;
  std::vector<std::string> state_names;  // of the states of each element
  std::vector<int> group_of;             // the group of each parameter; in a shard: of each partition
};

}  // namespace starling
