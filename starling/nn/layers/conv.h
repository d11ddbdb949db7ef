// The convolution layer of the models: libtorch's convolution, whose output channels may be sharded over
// ranks among them.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <utility>

#include "starling/nn/layers/layer_exchange.h"

namespace starling {

// Conv2d has the parameters, initialization and options of torch::nn::Conv2d.
class Conv2dImpl : public torch::nn::Conv2dImpl {
 public:
  using torch::nn::Conv2dImpl::Conv2dImpl;

  // Computes the convolution, with the exchange before and after it if one is set.
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = torch::nn::Conv2dImpl::forward(exchange_.enter ? exchange_.enter(x) : x);
    return exchange_.leave ? exchange_.leave(y) : y;
  }
  // Tells the layer that weight and bias hold only this rank's output channels from now on. The convolution
  // must have one group (options.groups()).
  void exchange_with(LayerExchange exchange) { exchange_ = std::move(exchange); }

 private:
  LayerExchange exchange_;
};

// Conv2d holds a Conv2dImpl, as torch::nn::Conv2d holds a torch::nn::Conv2dImpl.
TORCH_MODULE(Conv2d);

}  // namespace starling
