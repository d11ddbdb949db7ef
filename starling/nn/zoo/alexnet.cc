// AlexNet (Krizhevsky, Sutskever, Hinton, ImageNet Classification with Deep Convolutional Neural Networks,
// 2012) in one group. It has the original's 96, 256, 384, 384 and 256 channels, but no convolution is divided
// over two GPUs. Names, paddings and pooling are those of torchvision.models.alexnet, which has the channels
// of a later paper. There is therefore no local response normalization, and 224 pixels give 55×55 after conv
// 1. The 6×6 average pooling before the classifier adapts to any picture of at least 63 pixels.
#include "starling/nn/zoo/features_classifier.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

constexpr int64_t kLeastPixelsOfAlexnet = 63;  // 15×15, 7×7, 3×3 and 1×1 after conv 1 and the three poolings

class AlexNet : public FeaturesClassifier {
 public:
  AlexNet(int64_t channels, int64_t classes, double p, const SharedKeys& samples) : FeaturesClassifier(6) {
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

 private:
  void conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
    FeaturesClassifier::conv(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding));
  }
};

}  // namespace

ModelFactory make_alexnet(const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  check_pixels(spec.name, shape, kLeastPixelsOfAlexnet);
  return [channels = shape.input_shape[0], classes, dropout = spec.dropout] {
    return model_with_keys([&](const SharedKeys& samples) {
      return model_of(std::make_shared<AlexNet>(channels, classes, dropout, samples));
    });
  };
}

}  // namespace starling
