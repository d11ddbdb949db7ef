// FeaturesClassifier: torchvision's form of AlexNet and VGG: "features", convolutions and poolings; an average pooling to side × side,
// which adapts to any picture; and "classifier", fully connected layers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "starling/nn/conv.h"
#include "starling/nn/layer_chain.h"
#include "starling/nn/linear.h"
#include "starling/nn/tensor_parallel/divide.h"

namespace starling {

class FeaturesClassifier : public torch::nn::Module, public TensorDivisible {
 public:
  at::Tensor forward(const at::Tensor& x);
  void divide(Divider& divider) override { divider.in_pairs(fully_connected_); }
  std::vector<Block> blocks() const;

 protected:
  explicit FeaturesClassifier(int64_t side);

  // At the end of the features, with ReLU behind it.
  std::shared_ptr<Conv2d> conv(const torch::nn::Conv2dOptions& options);
  // At the end of the classifier.
  std::shared_ptr<Linear> linear(int64_t in, int64_t out);

  const std::shared_ptr<LayerChain> features_ = std::make_shared<LayerChain>();
  const std::shared_ptr<LayerChain> classifier_ = std::make_shared<LayerChain>();

 private:
  LayerChain::Step flat_maps() const;

  const int64_t side_;
  std::vector<Linear*> fully_connected_;  // of the classifier
};

}  // namespace starling
