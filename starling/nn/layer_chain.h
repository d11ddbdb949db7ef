// LayerChain is a module that applies layers one after another. Its parameters have the names of
// torch::nn::Sequential: a layer's name is its number. Steps without parameters (ReLU, pooling, dropout) take
// a number too. Networks that torchvision writes as a Sequential therefore keep their parameter names.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/nn/layers/keyed_dropout.h"
#include "starling/nn/model.h"

namespace starling {

// A sequence of numbered steps. The module registers each layer under its number.
class LayerChain : public torch::nn::Module {
 public:
  // One step: a function of the output of the step before.
  using Step = std::function<at::Tensor(const at::Tensor&)>;

  // Appends a layer with parameters and returns it, so that the caller can initialize it.
  template <class Layer>
  std::shared_ptr<Layer> add(std::shared_ptr<Layer> layer) {
    register_module(std::to_string(steps_.size()), layer);
    steps_.push_back({[layer = layer.get()](const at::Tensor& x) { return layer->forward(x); }, layer});
    return layer;
  }

  // Appends a step without parameters.
  void add_step(Step step) { steps_.push_back({std::move(step), nullptr}); }

  // Appends a ReLU. It works in place, so the step before must return a fresh tensor.
  void relu();
  // Appends a max pooling. If `ceil` is true, a last window that the border cuts counts, as in Caffe.
  void max_pool(int64_t kernel, int64_t stride, bool ceil = false);
  // Appends a dropout, which drops activations during training only. If the probability is 0, the step does
  // nothing but keeps its number.
  void dropout(const Dropout& dropout);

  // Applies all steps to `x`.
  at::Tensor forward(const at::Tensor& x) const { return run(0, steps_.size(), x); }

  // Returns one block for each layer, together with the steps that follow the layer. Steps before the first
  // layer belong to the first block. A block's name is "<prefix>.<number>", with the layer's number. The
  // first block calls `first` before its own steps, if `first` is set. The blocks refer to this chain, which
  // must outlive them.
  std::vector<Block> blocks(const std::string& prefix, const Step& first = {}) const;

 private:
  struct NumberedStep {
    Step run;
    std::shared_ptr<torch::nn::Module> layer;  // null for a step without parameters
  };

  at::Tensor run(size_t begin, size_t end, at::Tensor x) const;

  std::vector<NumberedStep> steps_;
};

}  // namespace starling
