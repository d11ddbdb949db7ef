// Finds the blocks (nn/model.h) of a module that does not define them: the children of a
// torch::nn::Sequential, or submodules in the order in which forward() calls them.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/nn/model.h"

namespace starling {

// Computes a block from what the block before it returned.
using BlockFunction = std::function<Tensors(const Tensors&)>;

// How a program computes the blocks whose names match a pattern.
struct BlockForward {
  // A name with * for any characters.
  std::string pattern;
  // Returns the function that computes `block`, a submodule of `model`. Returns an empty function if neither
  // of the two has the class that the program's function takes.
  std::function<BlockFunction(const std::shared_ptr<torch::nn::Module>& block,
                              const std::shared_ptr<torch::nn::Module>& model)>
      bind;
};

// The blocks of a module as a program names them (FitOptions::blocks() in starling/train/fit_options.h).
struct BlockNames {
  std::vector<std::string> patterns;   // in the order of forward(). Empty: the blocks are found
  std::vector<BlockForward> forwards;  // for blocks that cannot be called otherwise
};

// Fills model.blocks. Without patterns, the blocks are the children of the torch::nn::Sequential. A module
// with one Sequential or ModuleList among its children counts, too: the children of that list take its place.
// A child without parameters joins the block before it. Errors: ConfigError if the model has blocks, a
// pattern matches nothing, a parameter belongs to no block, or a block cannot be called.
void find_blocks(Model& model, const BlockNames& names);

}  // namespace starling
