// ResNet-18, -34 and -50 (He et al., Deep Residual Learning, 2015) with the names, shapes, mathematics and
// initialization of torchvision.models.resnet*. The stride of a bottleneck is in its 3×3 convolution.
// Convolutions are drawn from N(0, 2 / fan_out), and batch norms start at 1 and 0. The "cifar" stem has a 3×3
// conv1 of stride 1 and no max-pooling.
#include <fmt/format.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <array>

#include "starling/base/error.h"
#include "starling/nn/layers/batch_norm.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/layers/linear.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

std::shared_ptr<Conv2dImpl> conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  auto layer = std::make_shared<Conv2dImpl>(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
  return layer;
}

// The convolution and batch norm of a shortcut. Their names in the state dict are downsample.0 and
// downsample.1.
class Downsample : public torch::nn::Module {
 public:
  Downsample(int64_t in, int64_t out, int64_t stride) {
    conv_ = register_module("0", conv(in, out, 1, stride));
    norm_ = register_module("1", std::make_shared<BatchNorm2dImpl>(out));
  }
  at::Tensor forward(const at::Tensor& x) { return norm_->forward(conv_->forward(x)); }

 private:
  std::shared_ptr<Conv2dImpl> conv_;
  std::shared_ptr<BatchNorm2dImpl> norm_;
};

// A residual block: a shortcut around convolutions conv1, conv2 (and conv3), each with its batch norm.
class ResidualBlock : public torch::nn::Module {
 public:
  struct Conv {
    int64_t in, out, kernel, stride;
  };

  explicit ResidualBlock(const std::vector<Conv>& convs) {
    int64_t stride = 1;
    for (size_t i = 0; i < convs.size(); ++i) {
      const Conv& c = convs[i];
      convs_.push_back(register_module(fmt::format("conv{}", i + 1), conv(c.in, c.out, c.kernel, c.stride)));
      norms_.push_back(register_module(fmt::format("bn{}", i + 1), std::make_shared<BatchNorm2dImpl>(c.out)));
      stride *= c.stride;
    }
    const int64_t in = convs.front().in, out = convs.back().out;
    if (stride != 1 || in != out) {
      downsample_ = register_module("downsample", std::make_shared<Downsample>(in, out, stride));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = x;
    for (size_t i = 0; i < convs_.size(); ++i) {
      h = norms_[i]->forward(convs_[i]->forward(h));
      if (i + 1 < convs_.size()) h.relu_();
    }
    h.add_(downsample_ ? downsample_->forward(x) : x);
    return h.relu_();
  }

 private:
  std::vector<std::shared_ptr<Conv2dImpl>> convs_;
  std::vector<std::shared_ptr<BatchNorm2dImpl>> norms_;
  std::shared_ptr<Downsample> downsample_;
};

class ResNet : public torch::nn::Module {
 public:
  ResNet(int depth, int64_t channels, bool cifar_stem, int64_t classes) : pool_stem_(!cifar_stem) {
    conv1_ = register_module("conv1", cifar_stem ? conv(channels, 64, 3, 1) : conv(channels, 64, 7, 2));
    bn1_ = register_module("bn1", std::make_shared<BatchNorm2dImpl>(64));
    const std::array<int, 4> blocks = depth == 18 ? std::array{2, 2, 2, 2} : std::array{3, 4, 6, 3};
    const int64_t expansion = depth == 50 ? 4 : 1;
    int64_t in = 64;
    for (int stage = 0; stage < 4; ++stage) {
      const int64_t width = 64 << stage;
      torch::nn::Sequential layer;
      for (int i = 0; i < blocks[stage]; ++i) {
        const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
        layer->push_back(depth == 50 ? bottleneck(in, width, stride) : basic(in, width, stride));
        in = width * expansion;
      }
      layers_.push_back(register_module(fmt::format("layer{}", stage + 1), layer));
    }
    fc_ = register_module("fc", std::make_shared<LinearImpl>(in, classes));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = stem(x);
    for (auto& layer : layers_) h = layer->forward(h);
    return fc_->forward(h.mean({2, 3}));
  }

  // The blocks are the stem, each residual block and the classifier.
  std::vector<Block> blocks() {
    std::vector<Block> blocks;
    blocks.push_back(make_block("stem", {conv1_, bn1_}, [this](const at::Tensor& x) { return stem(x); }));
    for (size_t stage = 0; stage < layers_.size(); ++stage) {
      for (const auto& child : layers_[stage]->named_children()) {
        auto residual = std::dynamic_pointer_cast<ResidualBlock>(child.value());
        blocks.push_back(make_block(fmt::format("layer{}.{}", stage + 1, child.key()), {residual},
                                    [r = residual.get()](const at::Tensor& x) { return r->forward(x); }));
      }
    }
    blocks.push_back(make_block(
        "fc", {fc_}, [fc = fc_.get()](const at::Tensor& x) { return fc->forward(x.mean({2, 3})); }));
    return blocks;
  }

 private:
  static std::shared_ptr<ResidualBlock> basic(int64_t in, int64_t width, int64_t stride) {
    return std::make_shared<ResidualBlock>(
        std::vector<ResidualBlock::Conv>{{in, width, 3, stride}, {width, width, 3, 1}});
  }
  static std::shared_ptr<ResidualBlock> bottleneck(int64_t in, int64_t width, int64_t stride) {
    return std::make_shared<ResidualBlock>(std::vector<ResidualBlock::Conv>{
        {in, width, 1, 1}, {width, width, 3, stride}, {width, 4 * width, 1, 1}});
  }

  at::Tensor stem(const at::Tensor& x) {
    const at::Tensor h = bn1_->forward(conv1_->forward(x)).relu_();
    return pool_stem_ ? at::max_pool2d(h, 3, 2, 1) : h;
  }

  bool pool_stem_;
  std::shared_ptr<Conv2dImpl> conv1_;
  std::shared_ptr<BatchNorm2dImpl> bn1_;
  std::vector<torch::nn::Sequential> layers_;
  std::shared_ptr<LinearImpl> fc_;
};

bool has_cifar_stem(const ModelSpec& spec, const ModelShape& shape) {
  if (spec.stem == "cifar") return true;
  if (spec.stem == "imagenet") return false;
  if (spec.stem != "auto") {
    throw ConfigError("model.stem", fmt::format("\"{}\" is not one of auto, imagenet, cifar", spec.stem));
  }
  return shape.input_shape[1] <= 64 && shape.input_shape[2] <= 64;
}

}  // namespace

ModelFactory make_resnet(int depth, const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  return [depth, channels = shape.input_shape[0], cifar = has_cifar_stem(spec, shape), classes] {
    return model_of(std::make_shared<ResNet>(depth, channels, cifar, classes));
  };
}

}  // namespace starling
