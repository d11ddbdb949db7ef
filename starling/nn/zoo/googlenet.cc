// GoogLeNet (Szegedy et al., Going Deeper with Convolutions, 2014) as published and as FireCaffe counts it.
// It has 5×5 convolutions in the third branch, local response normalization after the stem's first and last
// convolution, both auxiliary heads and no batch norm. Modules are named as in torchvision.models.googlenet
// (conv1.conv, inception4a.branch2.0.conv, aux1.fc1, …), but torchvision's network has batch norm and 3×3 in
// the third branch. Weights are Caffe's "xavier", uniform within sqrt(3 / fan_in). Biases of convolutions are
// 0.2.
//
// In training, the output is [n, 3, classes]: the logits of the classifier, of aux1 and of aux2. The loss is
//   L(classifier) + 0.3 (L(aux1) + L(aux2)).
// In evaluation, the output is the classifier's logits [n, classes]. The pools before the classifiers adapt
// to any picture of at least 31 pixels.
#include <torch/nn/init.h>
#include <torch/types.h>

#include <cmath>

#include "starling/nn/blocks.h"
#include "starling/nn/layer_chain.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/layers/keyed_dropout.h"
#include "starling/nn/layers/linear.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

constexpr int64_t kLeastPixelsOfGooglenet = 31;  // 16×16 after conv1, then four poolings halve
constexpr double kAuxWeight = 0.3;

at::Tensor max_pool_ceil(const at::Tensor& x, int64_t stride, int64_t padding) {
  return at::max_pool2d(x, 3, stride, padding, /*dilation=*/1, /*ceil_mode=*/true);
}

// Computes y = x / (1 + α/5 Σ x²)^0.75 over the 5 channels around each channel, with α = 1e-4. This is
// Caffe's form of the normalization of Krizhevsky et al. (2012, section 3.3).
at::Tensor local_response_norm(const at::Tensor& x) {
  constexpr int64_t kWindow = 5;
  const at::Tensor squares = at::constant_pad_nd(x * x, {0, 0, 0, 0, kWindow / 2, kWindow / 2});
  at::Tensor sum = squares.narrow(1, 0, x.size(1));
  for (int64_t i = 1; i < kWindow; ++i) sum = sum + squares.narrow(1, i, x.size(1));
  return x * (sum * (1e-4 / kWindow) + 1.0).pow(-0.75);
}

void fill_xavier(at::Tensor weight) {
  const int64_t inputs = weight.numel() / weight.size(0);
  const double bound = std::sqrt(3.0 / static_cast<double>(inputs));
  torch::nn::init::uniform_(weight, -bound, bound);
}

std::shared_ptr<LinearImpl> linear_layer(int64_t in, int64_t out) {
  auto layer = std::make_shared<LinearImpl>(in, out);
  fill_xavier(layer->weight);
  torch::nn::init::zeros_(layer->bias);
  return layer;
}

// A convolution and its ReLU. The parameters are conv.weight and conv.bias.
class Conv : public torch::nn::Module {
 public:
  Conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1)
      : conv_(std::make_shared<Conv2dImpl>(
            torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2))) {
    register_module("conv", conv_);
    fill_xavier(conv_->weight);
    torch::nn::init::constant_(conv_->bias, 0.2);
  }
  at::Tensor forward(const at::Tensor& x) { return conv_->forward(x).relu_(); }

 private:
  std::shared_ptr<Conv2dImpl> conv_;
};

// The output channels of the branches, as in table 1 of the paper.
struct Widths {
  int64_t in, one, three_reduce, three, five_reduce, five, pool;
};

// Four parallel branches, joined along the channels.
class Inception : public torch::nn::Module {
 public:
  explicit Inception(const Widths& w) {
    branch1_ = register_module("branch1", std::make_shared<Conv>(w.in, w.one, 1));
    branch2_->add(std::make_shared<Conv>(w.in, w.three_reduce, 1));
    branch2_->add(std::make_shared<Conv>(w.three_reduce, w.three, 3));
    branch3_->add(std::make_shared<Conv>(w.in, w.five_reduce, 1));
    branch3_->add(std::make_shared<Conv>(w.five_reduce, w.five, 5));
    branch4_->add_step([](const at::Tensor& x) { return max_pool_ceil(x, 1, 1); });
    branch4_->add(std::make_shared<Conv>(w.in, w.pool, 1));
    register_module("branch2", branch2_);
    register_module("branch3", branch3_);
    register_module("branch4", branch4_);
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::cat({branch1_->forward(x), branch2_->forward(x), branch3_->forward(x), branch4_->forward(x)},
                   1);
  }

 private:
  std::shared_ptr<Conv> branch1_;
  std::shared_ptr<LayerChain> branch2_ = std::make_shared<LayerChain>(),
                              branch3_ = std::make_shared<LayerChain>(),
                              branch4_ = std::make_shared<LayerChain>();
};

// An auxiliary classifier on the feature maps in the middle of the network.
class AuxiliaryHead : public torch::nn::Module {
 public:
  AuxiliaryHead(int64_t in, int64_t classes, const Dropout& dropout) : dropout_(dropout) {
    conv_ = register_module("conv", std::make_shared<Conv>(in, 128, 1));
    fc1_ = register_module("fc1", linear_layer(128 * 4 * 4, 1024));
    fc2_ = register_module("fc2", linear_layer(1024, classes));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = conv_->forward(at::adaptive_avg_pool2d(x, {4, 4})).flatten(1);
    h = fc1_->forward(h).relu_();
    return fc2_->forward(dropout_(h, is_training()));
  }

 private:
  Dropout dropout_;
  std::shared_ptr<Conv> conv_;
  std::shared_ptr<LinearImpl> fc1_, fc2_;
};

class GoogLeNet : public torch::nn::Module {
 public:
  // Dropout has three places: the two auxiliary heads and then the classifier.
  GoogLeNet(int64_t channels, int64_t classes, double p, const SharedKeys& samples) {
    add_stem(channels);
    add("inception3a", {192, 64, 96, 128, 16, 32, 32});
    add("inception3b", {256, 128, 128, 192, 32, 96, 64}, /*pooled=*/true);
    add("inception4a", {480, 192, 96, 208, 16, 48, 64});
    add_head("aux1", 512, classes, {p, samples, 0});
    add("inception4b", {512, 160, 112, 224, 24, 64, 64});
    add("inception4c", {512, 128, 128, 256, 24, 64, 64});
    add("inception4d", {512, 112, 144, 288, 32, 64, 64});
    add_head("aux2", 528, classes, {p, samples, 1});
    add("inception4e", {528, 256, 160, 320, 32, 128, 128}, /*pooled=*/true);
    add("inception5a", {832, 256, 160, 320, 32, 128, 128});
    add("inception5b", {832, 384, 192, 384, 48, 128, 128});
    add_classifier(classes, {p, samples, 2});
  }

  at::Tensor forward(const at::Tensor& x) { return run_blocks(blocks_, 0, blocks_.size(), {x}).front(); }

  // The blocks are the stem's convolutions, each inception module and the classifier. In training, the logits
  // of the auxiliary heads travel behind the activation, from inception4a and inception4d to the end.
  std::vector<Block> blocks() const { return blocks_; }

 private:
  void add_stem(int64_t channels) {
    auto conv1 = register_module("conv1", std::make_shared<Conv>(channels, 64, 7, 2));
    auto conv2 = register_module("conv2", std::make_shared<Conv>(64, 64, 1));
    auto conv3 = register_module("conv3", std::make_shared<Conv>(64, 192, 3));
    blocks_.push_back(make_block("conv1", {conv1}, [conv = conv1.get()](const at::Tensor& x) {
      return local_response_norm(max_pool_ceil(conv->forward(x), 2, 0));
    }));
    blocks_.push_back(
        make_block("conv2", {conv2}, [conv = conv2.get()](const at::Tensor& x) { return conv->forward(x); }));
    blocks_.push_back(make_block("conv3", {conv3}, [conv = conv3.get()](const at::Tensor& x) {
      return max_pool_ceil(local_response_norm(conv->forward(x)), 2, 0);
    }));
  }

  // Adds an inception module, which transforms the first tensor and passes all further tensors on. If
  // `pooled` is true, a pooling follows.
  void add(const char* name, const Widths& widths, bool pooled = false) {
    auto inception = register_module(name, std::make_shared<Inception>(widths));
    blocks_.push_back({name, {inception}, [i = inception.get(), pooled](const Tensors& x) {
                         Tensors y = x;
                         y[0] = i->forward(x[0]);
                         if (pooled) y[0] = max_pool_ceil(y[0], 2, 0);
                         return y;
                       }});
  }

  // Adds an auxiliary head on the activation that the last block returns.
  void add_head(const char* name, int64_t in, int64_t classes, const Dropout& dropout) {
    auto head = register_module(name, std::make_shared<AuxiliaryHead>(in, classes, dropout));
    Block& block = blocks_.back();
    block.modules.push_back(head);
    block.forward = [this, body = block.forward, head = head.get()](const Tensors& x) {
      Tensors y = body(x);
      if (is_training()) y.push_back(head->forward(y[0]));
      return y;
    };
  }

  void add_classifier(int64_t classes, const Dropout& dropout) {
    auto fc = register_module("fc", linear_layer(1024, classes));
    blocks_.push_back({"fc", {fc}, [this, dropout, fc = fc.get()](const Tensors& x) {
                         Tensors answers = x;
                         answers[0] = fc->forward(dropout(x[0].mean({2, 3}), is_training()));
                         return is_training() ? Tensors{at::stack(answers, 1)} : answers;
                       }});
  }

  std::vector<Block> blocks_;
};

// `output` is [n, 3, classes] in training and [n, classes] in evaluation.
at::Tensor googlenet_loss(const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() == 2) return cross_entropy(output, target);
  const auto loss_of = [&](int64_t head) { return cross_entropy(output.select(1, head), target); };
  return loss_of(0) + kAuxWeight * (loss_of(1) + loss_of(2));
}

}  // namespace

ModelFactory make_googlenet(const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  check_pixels(spec.name, shape, kLeastPixelsOfGooglenet);
  return [channels = shape.input_shape[0], classes, dropout = spec.dropout] {
    Model model = model_with_keys([&](const SharedKeys& samples) {
      return model_of(std::make_shared<GoogLeNet>(channels, classes, dropout, samples));
    });
    model.loss = googlenet_loss;
    return model;
  };
}

}  // namespace starling
