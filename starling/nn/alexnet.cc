// AlexNet (Krizhevsky, Sutskever, Hinton, ImageNet Classification with Deep Convolutional Neural Networks, 2012) in one
// group: the original's 96, 256, 384, 384, 256 channels, none of its convolutions divided over two GPUs. Names, paddings
// and pooling are those of torchvision.models.alexnet (which has the channels of a later paper), so there is no local
// response normalisation, and 224 pixels give 55×55 after conv 1. The 6×6 average pooling before the classifier adapts to
// any picture of at least 63 pixels.
#include <torch/types.h>

#include "starling/nn/conv.h"
#include "starling/nn/layer_chain.h"
#include "starling/nn/linear.h"
#include "starling/nn/models.h"
#include "starling/nn/tensor_parallel/divide.h"

namespace starling {
namespace {

constexpr int64_t kLeastPixels = 63;  // 15×15, 7×7, 3×3 and 1×1 after conv 1 and the three poolings

class AlexNet : public torch::nn::Module, public TensorDivisible {
 public:
  AlexNet(int64_t channels, int64_t classes, double p, const SharedKeys& samples) {
    register_module("features", features_);
    register_module("classifier", classifier_);
    conv(channels, 96, 11, 4, 2);
    features_->max_pool(3, 2);
    conv(96, 256, 5, 1, 2);
    features_->max_pool(3, 2);
    conv(256, 384, 3, 1, 1);
    conv(384, 384, 3, 1, 1);
    conv(384, 256, 3, 1, 1);
    features_->max_pool(3, 2);
    classifier_->dropout({p, samples, 0});
    linear(256 * 6 * 6, 4096);
    classifier_->relu();
    classifier_->dropout({p, samples, 1});
    linear(4096, 4096);
    classifier_->relu();
    linear(4096, classes);
  }

  at::Tensor forward(const at::Tensor& x) { return classifier_->forward(flat_maps(features_->forward(x))); }

  void divide(Divider& divider) override { divider.in_pairs(fully_connected_); }

  std::vector<Block> blocks() const {
    std::vector<Block> blocks = features_->blocks("features");
    for (Block& block : classifier_->blocks("classifier", flat_maps)) blocks.push_back(std::move(block));
    return blocks;
  }

 private:
  static at::Tensor flat_maps(const at::Tensor& x) { return at::adaptive_avg_pool2d(x, {6, 6}).flatten(1); }

  void conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
    features_->add(
        std::make_shared<Conv2d>(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding)));
    features_->relu();
  }

  void linear(int64_t in, int64_t out) {
    fully_connected_.push_back(classifier_->add(std::make_shared<Linear>(in, out)).get());
  }

  std::shared_ptr<LayerChain> features_ = std::make_shared<LayerChain>();
  std::shared_ptr<LayerChain> classifier_ = std::make_shared<LayerChain>();
  std::vector<Linear*> fully_connected_;  // of the classifier
};

}  // namespace

ModelFactory make_alexnet(const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  check_pixels(spec.name, shape, kLeastPixels);
  return [channels = shape.input_shape[0], classes, dropout = spec.dropout] {
    return model_with_keys([&](const SharedKeys& samples) {
      return model_of(std::make_shared<AlexNet>(channels, classes, dropout, samples));
    });
  };
}

}  // namespace starling
