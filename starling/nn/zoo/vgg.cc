// VGG-19, configuration E of Simonyan, Zisserman, Very Deep Convolutional Networks for Large-Scale Image
// Recognition (2014), with the names, shapes and initialization of torchvision.models.vgg19. It has 16
// convolutions of 3×3 in five blocks, each followed by pooling, and three fully connected layers. The 7×7
// average pooling before the classifier adapts to any picture of at least 32 pixels.
#include <torch/nn/init.h>

#include "starling/nn/zoo/features_classifier.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

constexpr int64_t kLeastPixelsOfVgg = 32;  // five poolings halve the picture

struct Stage {
  int convolutions;
  int64_t channels;
};
constexpr Stage kStages[] = {{2, 64}, {2, 128}, {4, 256}, {4, 512}, {4, 512}};

class Vgg : public FeaturesClassifier {
 public:
  Vgg(int64_t channels, int64_t classes, double p, const SharedKeys& samples) : FeaturesClassifier(7) {
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

 private:
  void conv(int64_t in, int64_t out) {
    const auto layer = FeaturesClassifier::conv(torch::nn::Conv2dOptions(in, out, 3).padding(1));
    torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
    torch::nn::init::zeros_(layer->bias);
  }

  void linear(int64_t in, int64_t out) {
    const auto layer = FeaturesClassifier::linear(in, out);
    torch::nn::init::normal_(layer->weight, 0.0, 0.01);
    torch::nn::init::zeros_(layer->bias);
  }
};

}  // namespace

ModelFactory make_vgg19(const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  check_pixels(spec.name, shape, kLeastPixelsOfVgg);
  return [channels = shape.input_shape[0], classes, dropout = spec.dropout] {
    return model_with_keys([&](const SharedKeys& samples) {
      return model_of(std::make_shared<Vgg>(channels, classes, dropout, samples));
    });
  };
}

}  // namespace starling
