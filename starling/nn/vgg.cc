// VGG-19, configuration E of Simonyan, Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition
// (2014), with the names, shapes and initialisation of torchvision.models.vgg19: 16 convolutions of 3×3 in five blocks,
// each followed by pooling, and three fully connected layers. The 7×7 average pooling before the classifier adapts to
// any picture of at least 32 pixels.
#include <torch/nn/init.h>
#include <torch/types.h>

#include "starling/nn/conv.h"
#include "starling/nn/layer_chain.h"
#include "starling/nn/linear.h"
#include "starling/nn/models.h"
#include "starling/nn/tensor_parallel/divide.h"

namespace starling {
namespace {

constexpr int64_t kLeastPixels = 32;  // five poolings halve the picture

struct Stage {
  int convolutions;
  int64_t channels;
};
constexpr Stage kStages[] = {{2, 64}, {2, 128}, {4, 256}, {4, 512}, {4, 512}};

class Vgg : public torch::nn::Module, public TensorDivisible {
 public:
  Vgg(int64_t channels, int64_t classes, double p, const SharedKeys& samples) {
    register_module("features", features_);
    register_module("classifier", classifier_);
    int64_t in = channels;
    for (const Stage& stage : kStages) {
      for (int i = 0; i < stage.convolutions; ++i) {
        conv(in, stage.channels);
        in = stage.channels;
      }
      features_->max_pool(2, 2);
    }
    int64_t place = 0;
    for (const int64_t inputs : {int64_t{512 * 7 * 7}, int64_t{4096}}) {
      linear(inputs, 4096);
      classifier_->relu();
      classifier_->dropout({p, samples, place++});
    }
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
  static at::Tensor flat_maps(const at::Tensor& x) { return at::adaptive_avg_pool2d(x, {7, 7}).flatten(1); }

  void conv(int64_t in, int64_t out) {
    const auto layer =
        features_->add(std::make_shared<Conv2d>(torch::nn::Conv2dOptions(in, out, 3).padding(1)));
    torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
    torch::nn::init::zeros_(layer->bias);
    features_->relu();
  }

  void linear(int64_t in, int64_t out) {
    const auto layer = classifier_->add(std::make_shared<Linear>(in, out));
    fully_connected_.push_back(layer.get());
    torch::nn::init::normal_(layer->weight, 0.0, 0.01);
    torch::nn::init::zeros_(layer->bias);
  }

  std::shared_ptr<LayerChain> features_ = std::make_shared<LayerChain>();
  std::shared_ptr<LayerChain> classifier_ = std::make_shared<LayerChain>();
  std::vector<Linear*> fully_connected_;  // of the classifier
};

}  // namespace

ModelFactory make_vgg19(const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  check_pixels(spec.name, shape, kLeastPixels);
  return [channels = shape.input_shape[0], classes, dropout = spec.dropout] {
    return model_with_keys([&](const SharedKeys& samples) {
      return model_of(std::make_shared<Vgg>(channels, classes, dropout, samples));
    });
  };
}

}  // namespace starling
