// torch::nn::Linear layers that are sharded over several ranks. The class knows nothing of ranks, and its
// forward function cannot be replaced. It computes x.matmul(weight.t()) if the module has no bias. So the
// layer loses its bias, and the weight carries what else the layer must do. PlainLinears finds it there when
// at::matmul is called with the transposed weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "starling/nn/layers/layer_exchange.h"

namespace torch {
class Library;
}
namespace torch::nn {
class LinearImpl;
}

namespace starling {

// Tells the layer that its weight and bias hold only this rank's parts from now on. The bias stays a
// parameter of the module; its member `bias` becomes undefined. A PlainLinears must exist when the layer
// computes.
void exchange_with(torch::nn::LinearImpl& layer, LayerExchange exchange);

// Makes at::matmul on the CPU compute the layers of exchange_with() in the whole process during its lifetime,
// also under torch::autocast and c10::InferenceMode. All other products are those of ATen.
class PlainLinears {
 public:
  PlainLinears();
  ~PlainLinears();

 private:
  // The registrations, undone when they are destroyed.
  std::vector<std::unique_ptr<torch::Library>> libraries_;
};

}  // namespace starling
