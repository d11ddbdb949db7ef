#include "starling/nn/layer_chain.h"

#include <torch/types.h>

namespace starling {

void LayerChain::relu() {
  steps_.push_back([](const at::Tensor& x) { return x.relu_(); });
}

void LayerChain::max_pool(int64_t kernel, int64_t stride, bool ceil) {
  steps_.push_back([=](const at::Tensor& x) {
    return at::max_pool2d(x, kernel, stride, /*padding=*/0, /*dilation=*/1, ceil);
  });
}

void LayerChain::dropout(double p) {
  steps_.push_back([this, p](const at::Tensor& x) { return p > 0 ? at::dropout(x, p, is_training()) : x; });
}

at::Tensor LayerChain::forward(const at::Tensor& x) const {
  at::Tensor h = x;
  for (const Step& step : steps_) h = step(h);
  return h;
}

}  // namespace starling
