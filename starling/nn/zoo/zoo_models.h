// The factories of the zoo's models, one source file per model. zoo_model (model.h) calls them and checks
// what they have in common. Each function here checks what its own model needs before it returns the factory.
#pragma once

#include "starling/nn/blocks.h"
#include "starling/nn/model.h"

namespace starling {

// A multi-layer perceptron with the layers model.widths. For all functions: `classes` is the number of
// outputs of the last layer, from model.classes or from the data. Errors: ConfigError if the model does not
// fit the data.
ModelFactory make_mlp(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
// LeNet-5 (LeCun et al., 1998).
ModelFactory make_lenet5(const ModelShape& shape, int64_t classes);
// ResNet of depth 18, 34 or 50.
ModelFactory make_resnet(int depth, const ModelSpec& spec, const ModelShape& shape, int64_t classes);
// AlexNet. model.dropout is the probability at every place where the original network drops activations.
ModelFactory make_alexnet(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
// Network in Network.
ModelFactory make_nin(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
// GoogLeNet.
ModelFactory make_googlenet(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
// VGG with 19 layers.
ModelFactory make_vgg19(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
// GPT-2 for a vocabulary of this size.
ModelFactory make_gpt(const ModelSpec& spec, int64_t vocabulary);
// Llama for a vocabulary of this size.
ModelFactory make_llama(const ModelSpec& spec, int64_t vocabulary);

// Throws ConfigError if the pictures of `shape` have fewer than `least` pixels per side.
void check_pixels(const std::string& model, const ModelShape& shape, int64_t least);

// Makes a Model of a module that has forward(Tensor), with cross-entropy as its loss. If the module has
// blocks(), the model can be cut into stages.
template <typename Module>
Model model_of(std::shared_ptr<Module> module) {
  Model model{module, [module = module.get()](const at::Tensor& x) { return module->forward(x); },
              cross_entropy};
  if constexpr (requires { module->blocks(); }) model.blocks = module->blocks();
  return model;
}

}  // namespace starling
