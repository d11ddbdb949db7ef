// LayerChain: layers one after the other, with the parameter names of torch::nn::Sequential: a layer's name is its
// number, and steps that have no parameters (ReLU, pooling, dropout) take a number too. So the networks of
// torchvision that are written as a Sequential keep their names.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/nn/keyed_dropout.h"
#include "starling/nn/model.h"

namespace starling {

class LayerChain : public torch::nn::Module {
 public:
  using Step = std::function<at::Tensor(const at::Tensor&)>;

  // A layer with parameters; returns it, so that the caller can initialise it.
  template <class Layer>
  std::shared_ptr<Layer> add(std::shared_ptr<Layer> layer) {
    register_module(std::to_string(steps_.size()), layer);
    steps_.push_back({[layer = layer.get()](const at::Tensor& x) { return layer->forward(x); }, layer});
    return layer;
  }

  // A step without parameters.
  void add_step(Step step) { steps_.push_back({std::move(step), nullptr}); }

  // Common steps. relu works in place: the step before must make a fresh tensor.
  void relu();
  // ceil: a last window that is cut by the border counts, as in Caffe.
  void max_pool(int64_t kernel, int64_t stride, bool ceil = false);
  // While training, drops activations. A probability of 0 does nothing; the step keeps its number.
  void dropout(const Dropout& dropout);

  at::Tensor forward(const at::Tensor& x) const { return run(0, steps_.size(), x); }

  // A block for each layer and the steps behind it, named "<prefix>.<number>"; `first` is done before everything else. They
  // refer to this chain, which must outlive them.
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
