#include "starling/nn/zoo/features_classifier.h"

#include <torch/types.h>

namespace starling {

FeaturesClassifier::FeaturesClassifier(int64_t side) : side_(side) {
  register_module("features", features_);
  register_module("classifier", classifier_);
}

LayerChain::Step FeaturesClassifier::flat_maps() const {
  return [side = side_](const at::Tensor& x) { return at::adaptive_avg_pool2d(x, {side, side}).flatten(1); };
}

at::Tensor FeaturesClassifier::forward(const at::Tensor& x) {
  return classifier_->forward(flat_maps()(features_->forward(x)));
}

std::vector<Block> FeaturesClassifier::blocks() const {
  std::vector<Block> blocks = features_->blocks("features");
  for (Block& block : classifier_->blocks("classifier", flat_maps())) blocks.push_back(std::move(block));
  return blocks;
}

std::shared_ptr<Conv2dImpl> FeaturesClassifier::conv(const torch::nn::Conv2dOptions& options) {
  auto layer = features_->add(std::make_shared<Conv2dImpl>(options));
  features_->relu();
  return layer;
}

std::shared_ptr<LinearImpl> FeaturesClassifier::linear(int64_t in, int64_t out) {
  auto layer = classifier_->add(std::make_shared<LinearImpl>(in, out));
  fully_connected_.push_back(layer.get());
  return layer;
}

}  // namespace starling
