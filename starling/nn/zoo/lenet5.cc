// LeNet-5 (LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998) with ReLU and
// max-pooling. Its layers are conv1 1->6 5×5 pad 2, pool, conv2 6->16 5×5, pool, fc1 120, fc2 84 and fc3
// classes.
#include <fmt/format.h>
#include <torch/types.h>

#include "starling/base/error.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/layers/linear.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

class LeNet5 : public torch::nn::Module, public TensorShardable {
 public:
  // pooled_h and pooled_w are the size of the image after both convolutions and poolings.
  LeNet5(int64_t channels, int64_t pooled_h, int64_t pooled_w, int64_t classes) {
    conv1_ = register_module(
        "conv1", std::make_shared<Conv2dImpl>(torch::nn::Conv2dOptions(channels, 6, 5).padding(2)));
    conv2_ = register_module("conv2", std::make_shared<Conv2dImpl>(torch::nn::Conv2dOptions(6, 16, 5)));
    fc1_ = register_module("fc1", std::make_shared<LinearImpl>(16 * pooled_h * pooled_w, 120));
    fc2_ = register_module("fc2", std::make_shared<LinearImpl>(120, 84));
    fc3_ = register_module("fc3", std::make_shared<LinearImpl>(84, classes));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = at::max_pool2d(conv1_->forward(x).relu_(), 2);
    h = at::max_pool2d(conv2_->forward(h).relu_(), 2);
    h = fc1_->forward(h.flatten(1)).relu_();
    return fc3_->forward(fc2_->forward(h).relu_());
  }

  void shard(ModelSharder& sharder) override { sharder.in_pairs({fc1_.get(), fc2_.get(), fc3_.get()}); }

  std::vector<Block> blocks() {
    const auto pooled = [](Conv2dImpl* conv) {
      return [conv](const at::Tensor& x) { return at::max_pool2d(conv->forward(x).relu_(), 2); };
    };
    return {
        make_block("conv1", {conv1_}, pooled(conv1_.get())),
        make_block("conv2", {conv2_}, pooled(conv2_.get())),
        make_block("fc1", {fc1_},
                   [l = fc1_.get()](const at::Tensor& x) { return l->forward(x.flatten(1)).relu_(); }),
        make_block("fc2", {fc2_}, [l = fc2_.get()](const at::Tensor& x) { return l->forward(x).relu_(); }),
        make_block("fc3", {fc3_}, [l = fc3_.get()](const at::Tensor& x) { return l->forward(x); })};
  }

 private:
  std::shared_ptr<Conv2dImpl> conv1_, conv2_;
  std::shared_ptr<LinearImpl> fc1_, fc2_, fc3_;
};

}  // namespace

ModelFactory make_lenet5(const ModelShape& shape, int64_t classes) {
  const auto pooled = [](int64_t pixels) { return (pixels / 2 - 4) / 2; };
  const int64_t h = shape.input_shape[1], w = shape.input_shape[2];
  if (pooled(h) < 1 || pooled(w) < 1) {
    throw ConfigError("model.name",
                      fmt::format("lenet5 needs images of at least 12×12 pixels, the data has {}×{}", h, w));
  }
  return [channels = shape.input_shape[0], h = pooled(h), w = pooled(w), classes] {
    return model_of(std::make_shared<LeNet5>(channels, h, w, classes));
  };
}

}  // namespace starling
