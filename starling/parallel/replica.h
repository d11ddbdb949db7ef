// Replica: one instance of the model with its parameters and buffers by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "starling/nn/model.h"

namespace starling {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

struct Replica {
  Model model;
  std::vector<NamedTensor>
      parameters;  // those that require a gradient, in the order of the module; shared ones once
  std::vector<NamedTensor> buffers;
};

// A fresh replica in `type`; floating-point buffers and the parameters of batch norm stay fp32 when type is bf16.
// The parameters are a function of `seed` alone.
Replica make_replica(const ModelFactory& factory, at::ScalarType type, uint64_t seed);

// Stores 4-dimensional parameters (convolutions) in channels-last order.
void to_channels_last(Replica& replica);

int64_t parameter_count(const Replica& replica);

}  // namespace starling
