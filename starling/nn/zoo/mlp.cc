// A multi-layer perceptron: fc1, fc2, … with ReLU between them. The input is flattened.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <numeric>

#include "starling/base/error.h"
#include "starling/nn/layers/linear.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/nn/zoo/zoo_models.h"

namespace starling {
namespace {

class Mlp : public torch::nn::Module, public TensorShardable {
 public:
  explicit Mlp(const std::vector<int64_t>& widths) {
    for (size_t i = 1; i < widths.size(); ++i) {
      layers_.push_back(
          register_module(fmt::format("fc{}", i), std::make_shared<LinearImpl>(widths[i - 1], widths[i])));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = x.flatten(1);
    for (size_t i = 0; i < layers_.size(); ++i) {
      h = layers_[i]->forward(h);
      if (i + 1 < layers_.size()) h = h.relu_();
    }
    return h;
  }

  void shard(ModelSharder& sharder) override {
    std::vector<LinearImpl*> layers;
    for (const auto& layer : layers_) layers.push_back(layer.get());
    sharder.in_pairs(layers);
  }

  std::vector<Block> blocks() const {
    std::vector<Block> blocks;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool first = i == 0, last = i + 1 == layers_.size();
      blocks.push_back(make_block(fmt::format("fc{}", i + 1), {layers_[i]},
                                  [layer = layers_[i].get(), first, last](const at::Tensor& x) {
                                    const at::Tensor h = layer->forward(first ? x.flatten(1) : x);
                                    return last ? h : h.relu_();
                                  }));
    }
    return blocks;
  }

 private:
  std::vector<std::shared_ptr<LinearImpl>> layers_;
};

}  // namespace

ModelFactory make_mlp(const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  const int64_t inputs =
      std::accumulate(shape.input_shape.begin(), shape.input_shape.end(), int64_t{1}, std::multiplies<>());
  if (spec.widths.size() < 2)
    throw ConfigError("model.widths", "needs the inputs and the classes at least, as in [784, 10]");
  if (spec.widths.front() != inputs) {
    throw ConfigError(
        "model.widths",
        fmt::format("starts with {}, but a sample of the data has {} values ({}); write {} first",
                    spec.widths.front(), inputs, fmt::join(shape.input_shape, "×"), inputs));
  }
  if (spec.widths.back() != classes) {
    throw ConfigError("model.widths", fmt::format("ends with {}, but there are {} classes; write {} last",
                                                  spec.widths.back(), classes, classes));
  }
  return [widths = spec.widths] { return model_of(std::make_shared<Mlp>(widths)); };
}

}  // namespace starling
