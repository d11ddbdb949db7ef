// The models of the zoo, one file each; made through zoo_model (model.h), which checks what they share. What
// a model asks beyond that is checked before its factory is returned.
#pragma once

#include "starling/nn/blocks.h"
#include "starling/nn/model.h"

namespace starling {

// `classes` is what the last layer has: model.classes, or what the data has.
ModelFactory make_mlp(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
ModelFactory make_lenet5(const ModelShape& shape, int64_t classes);
// depth: 18, 34 or 50.
ModelFactory make_resnet(int depth, const ModelSpec& spec, const ModelShape& shape, int64_t classes);
// model.dropout is the probability at every place where the original drops.
ModelFactory make_alexnet(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
ModelFactory make_nin(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
ModelFactory make_googlenet(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
ModelFactory make_vgg19(const ModelSpec& spec, const ModelShape& shape, int64_t classes);
ModelFactory make_gpt(const ModelSpec& spec, int64_t vocabulary);

// Throws ConfigError if the pictures of `shape` have fewer than `least` pixels on a side.
void check_pixels(const std::string& model, const ModelShape& shape, int64_t least);

// A Model of a module type that has forward(Tensor) and cross-entropy as its loss; with blocks() it can be cut.
template <typename Module>
Model model_of(std::shared_ptr<Module> module) {
  Model model{module, [module = module.get()](const at::Tensor& x) { return module->forward(x); },
              cross_entropy};
  if constexpr (requires { module->blocks(); }) model.blocks = module->blocks();
  return model;
}

}  // namespace starling
