// Network in Network for ImageNet (Lin, Chen, Yan, Network In Network, 2013). It has four convolutions, each
// followed by two of 1×1 ("cccp"). The pooling between them counts windows that the border cuts, as in Caffe.
// The mean of the last feature maps is the output. Layers are named as in the authors' Caffe model: conv1,
// cccp1, cccp2, conv2, …, cccp8. Weights are drawn from N(0, 2 / fan_in). The network takes any picture of at
// least 39 pixels.
#include <torch/nn/init.h>
#include <torch/types.h>

#include <string>

#include "starling/nn/blocks.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/layers/keyed_dropout.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

constexpr int64_t kLeastPixelsOfNin = 39;  // 8×8 after conv1, then 4×4, 2×2 and 1×1

class NetworkInNetwork : public torch::nn::Module {
 public:
  NetworkInNetwork(int64_t channels, int64_t classes, const Dropout& dropout) : dropout_(dropout) {
    add("conv1", channels, 96, 11, 4, 0);
    add("cccp1", 96, 96, 1, 1, 0);
    add("cccp2", 96, 96, 1, 1, 0);
    add("conv2", 96, 256, 5, 1, 2);
    add("cccp3", 256, 256, 1, 1, 0);
    add("cccp4", 256, 256, 1, 1, 0);
    add("conv3", 256, 384, 3, 1, 1);
    add("cccp5", 384, 384, 1, 1, 0);
    add("cccp6", 384, 384, 1, 1, 0);
    add("conv4", 384, 1024, 3, 1, 1);
    add("cccp7", 1024, 1024, 1, 1, 0);
    add("cccp8", 1024, classes, 1, 1, 0);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = x;
    for (size_t i = 0; i < layers_.size(); ++i) h = step(i, h);
    return h;
  }

  std::vector<Block> blocks() {
    std::vector<Block> blocks;
    for (size_t i = 0; i < layers_.size(); ++i) {
      blocks.push_back(
          make_block(names_[i], {layers_[i]}, [this, i](const at::Tensor& x) { return step(i, x); }));
    }
    return blocks;
  }

 private:
  // Applies layer i and what follows it: a ReLU, and after each group of three layers the pooling. After the
  // last group, the mean of the maps follows instead.
  at::Tensor step(size_t i, const at::Tensor& x) {
    at::Tensor h = layers_[i]->forward(x).relu_();
    if (i % 3 != 2) return h;
    if (i + 1 == layers_.size()) return h.mean({2, 3});
    h = at::max_pool2d(h, 3, 2, /*padding=*/0, /*dilation=*/1, /*ceil_mode=*/true);
    return i == 8 ? dropout_(h, is_training()) : h;
  }

  void add(const std::string& name, int64_t in, int64_t out, int64_t kernel, int64_t stride,
           int64_t padding) {
    const auto layer = std::make_shared<Conv2dImpl>(
        torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding));
    torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanIn, torch::kReLU);
    torch::nn::init::zeros_(layer->bias);
    layers_.push_back(register_module(name, layer));
    names_.push_back(name);
  }

  Dropout dropout_;
  std::vector<std::shared_ptr<Conv2dImpl>> layers_;
  std::vector<std::string> names_;
};

}  // namespace

ModelFactory make_nin(const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  check_pixels(spec.name, shape, kLeastPixelsOfNin);
  return [channels = shape.input_shape[0], classes, dropout = spec.dropout] {
    return model_with_keys([&](const SharedKeys& samples) {
      return model_of(std::make_shared<NetworkInNetwork>(channels, classes, Dropout(dropout, samples, 0)));
    });
  };
}

}  // namespace starling
