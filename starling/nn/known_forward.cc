#include "starling/nn/known_forward.h"

#include <torch/nn/modules.h>

#include <typeinfo>
#include <utility>

#include "starling/nn/layers/batch_norm.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/layers/linear.h"

namespace starling {
namespace {

template <typename Layer>
bool bind_if(const std::shared_ptr<torch::nn::Module>& module, BlockFunction& function) {
  const torch::nn::Module& made = *module;
  if (typeid(made) != typeid(Layer)) return false;
  function = [layer = std::dynamic_pointer_cast<Layer>(module)](const Tensors& x) -> Tensors {
    return {layer->forward(x.at(0))};
  };
  return true;
}

template <typename... Layers>
BlockFunction first_of(const std::shared_ptr<torch::nn::Module>& module) {
  BlockFunction function;
  static_cast<void>((bind_if<Layers>(module, function) || ...));
  return function;
}

namespace nn = torch::nn;

}  // namespace

BlockFunction known_forward(const std::shared_ptr<torch::nn::Module>& module) {
  return first_of<LinearImpl, Conv2dImpl, BatchNorm2dImpl, nn::SequentialImpl, nn::IdentityImpl,
                  nn::LinearImpl, nn::FlattenImpl, nn::UnflattenImpl, nn::EmbeddingImpl, nn::Conv1dImpl,
                  nn::Conv2dImpl, nn::Conv3dImpl, nn::BatchNorm1dImpl, nn::BatchNorm2dImpl,
                  nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl, nn::InstanceNorm2dImpl, nn::InstanceNorm3dImpl,
                  nn::LayerNormImpl, nn::GroupNormImpl, nn::LocalResponseNormImpl, nn::DropoutImpl,
                  nn::Dropout2dImpl, nn::Dropout3dImpl, nn::AlphaDropoutImpl, nn::FeatureAlphaDropoutImpl,
                  nn::ELUImpl, nn::SELUImpl, nn::CELUImpl, nn::GELUImpl, nn::SiLUImpl, nn::MishImpl,
                  nn::ReLUImpl, nn::ReLU6Impl, nn::LeakyReLUImpl, nn::PReLUImpl, nn::GLUImpl, nn::SigmoidImpl,
                  nn::TanhImpl, nn::HardtanhImpl, nn::SoftplusImpl, nn::SoftmaxImpl, nn::LogSoftmaxImpl,
                  nn::AvgPool1dImpl, nn::AvgPool2dImpl, nn::AvgPool3dImpl, nn::MaxPool1dImpl,
                  nn::MaxPool2dImpl, nn::MaxPool3dImpl, nn::AdaptiveAvgPool1dImpl, nn::AdaptiveAvgPool2dImpl,
                  nn::AdaptiveAvgPool3dImpl, nn::AdaptiveMaxPool1dImpl, nn::AdaptiveMaxPool2dImpl,
                  nn::ZeroPad2dImpl, nn::ReflectionPad2dImpl, nn::PixelShuffleImpl, nn::UpsampleImpl>(module);
}

}  // namespace starling
