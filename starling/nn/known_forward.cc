#include "starling/nn/known_forward.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pixelshuffle.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/upsampling.h>

#include <typeinfo>
#include <vector>

#include "starling/nn/layers/batch_norm.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/layers/linear.h"

namespace starling {
namespace {

// A class of layers, and how a layer of exactly this class computes its output.
struct KnownLayer {
  const std::type_info* type;
  at::Tensor (*forward)(torch::nn::Module& module, const at::Tensor& x);
};

template <typename Layer>
at::Tensor forward_of(torch::nn::Module& module, const at::Tensor& x) {
  return dynamic_cast<Layer&>(module).forward(x);
}

template <typename... Layers>
const std::vector<KnownLayer>& table_of() {
  static const std::vector<KnownLayer> table = {{&typeid(Layers), forward_of<Layers>}...};
  return table;
}

namespace nn = torch::nn;

const std::vector<KnownLayer>& known_layers() {
  return table_of<LinearImpl, Conv2dImpl, BatchNorm2dImpl, nn::SequentialImpl, nn::IdentityImpl,
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
                  nn::ZeroPad2dImpl, nn::ReflectionPad2dImpl, nn::PixelShuffleImpl, nn::UpsampleImpl>();
}

}  // namespace

BlockFunction known_forward(const std::shared_ptr<torch::nn::Module>& module) {
  const torch::nn::Module& made = *module;
  for (const KnownLayer& layer : known_layers()) {
    if (typeid(made) != *layer.type) continue;
    return [module, forward = layer.forward](const Tensors& x) -> Tensors {
      return {forward(*module, x.at(0))};
    };
  }
  return nullptr;
}

}  // namespace starling
