// Replica: one instance of the model with its parameters and buffers by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "starling/data/source.h"
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
// The parameters are a function of `seed` alone, also where several threads make replicas at once; `factory` makes none.
Replica make_replica(const ModelFactory& factory, at::ScalarType type, uint64_t seed);

// Stores 4-dimensional parameters (convolutions) in channels-last order.
void to_channels_last(Replica& replica);

// The batch's input as a replica computes it: pictures in `type`, and in channels-last order where that is asked for; tokens
// as they are.
at::Tensor input_of(const Batch& batch, at::ScalarType type, bool channels_last);

// Forward: the mean loss of `model` over `batch`, computed in that type and order. Tells the model which samples it sees.
at::Tensor batch_loss(const Model& model, const Batch& batch, at::ScalarType type, bool channels_last);

int64_t parameter_count(const Replica& replica);

// Throws Error(kNumeric): the loss is not finite; names rank, step and the first parameter that is not finite.
[[noreturn]] void refuse_loss(const Replica& replica, int rank, int64_t step, double loss);

// The tensor of that name in a checkpoint. Errors: Error(kCheckpoint) where it is missing or not of the shape of `like`.
const at::Tensor& fitting(const std::map<std::string, at::Tensor>& tensors, const std::string& name,
                          const at::Tensor& like);

}  // namespace starling
