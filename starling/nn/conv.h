// The convolution of the models: libtorch's, whose output channels ranks can divide among them.
#pragma once

#include <torch/nn/modules/conv.h>

#include <utility>

#include "starling/nn/layer_exchange.h"

namespace starling {

// Parameters, initialisation and options of torch::nn::Conv2d.
class Conv2d : public torch::nn::Conv2dImpl {
 public:
  using torch::nn::Conv2dImpl::Conv2dImpl;

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = torch::nn::Conv2dImpl::forward(exchange_.enter ? exchange_.enter(x) : x);
    return exchange_.leave ? exchange_.leave(y) : y;
  }
  // weight and bias are this rank's output channels from now on. Needs one group (options.groups()).
  void exchange_with(LayerExchange exchange) { exchange_ = std::move(exchange); }

 private:
  LayerExchange exchange_;
};

}  // namespace starling
