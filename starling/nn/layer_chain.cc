#include "starling/nn/layer_chain.h"

#include <fmt/format.h>
#include <torch/types.h>

#include "starling/nn/blocks.h"

namespace starling {

void LayerChain::relu() {
  add_step([](const at::Tensor& x) { return x.relu_(); });
}

void LayerChain::max_pool(int64_t kernel, int64_t stride, bool ceil) {
  add_step([=](const at::Tensor& x) {
    return at::max_pool2d(x, kernel, stride, /*padding=*/0, /*dilation=*/1, ceil);
  });
}

void LayerChain::dropout(const Dropout& dropout) {
  add_step([this, dropout](const at::Tensor& x) { return dropout(x, is_training()); });
}

at::Tensor LayerChain::run(size_t begin, size_t end, at::Tensor x) const {
  for (size_t i = begin; i < end; ++i) x = steps_[i].run(x);
  return x;
}

std::vector<Block> LayerChain::blocks(const std::string& prefix, const Step& first) const {
  std::vector<size_t> layers;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].layer) layers.push_back(i);
  }
  std::vector<Block> blocks;
  for (size_t i = 0; i < layers.size(); ++i) {
    const size_t begin = i == 0 ? 0 : layers[i], end = i + 1 < layers.size() ? layers[i + 1] : steps_.size();
    const Step before = i == 0 ? first : Step();
    blocks.push_back(make_block(
        fmt::format("{}.{}", prefix, layers[i]), {steps_[layers[i]].layer},
        [this, begin, end, before](const at::Tensor& x) { return run(begin, end, before ? before(x) : x); }));
  }
  return blocks;
}

}  // namespace starling
