// FeaturesClassifier is a network in the form that torchvision gives AlexNet and VGG. "features" holds
// convolutions and poolings. An average pooling then reduces pictures of any size to side × side.
// "classifier" holds fully connected layers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "starling/nn/layer_chain.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/layers/linear.h"
#include "starling/nn/tensor_parallel/shard_model.h"

namespace starling {

// The base class of AlexNet and VGG.
class FeaturesClassifier : public torch::nn::Module, public TensorShardable {
 public:
  // Returns the logits of pictures x [n, c, h, w].
  at::Tensor forward(const at::Tensor& x);
  // Shards the classifier's layers in pairs.
  void shard(ModelSharder& sharder) override { sharder.in_pairs(fully_connected_); }
  // Returns the blocks of the network, for stages.
  std::vector<Block> blocks() const;

 protected:
  explicit FeaturesClassifier(int64_t side);

  // Appends a convolution and a ReLU to the features.
  std::shared_ptr<Conv2dImpl> conv(const torch::nn::Conv2dOptions& options);
  // Appends a fully connected layer to the classifier.
  std::shared_ptr<LinearImpl> linear(int64_t in, int64_t out);

  const std::shared_ptr<LayerChain> features_ = std::make_shared<LayerChain>();
  const std::shared_ptr<LayerChain> classifier_ = std::make_shared<LayerChain>();

 private:
  LayerChain::Step flat_maps() const;

  const int64_t side_;
  std::vector<LinearImpl*> fully_connected_;  // of the classifier
};

}  // namespace starling
