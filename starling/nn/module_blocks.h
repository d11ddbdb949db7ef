// Finds the blocks (nn/model.h) of a module that does not define them. The blocks are the children of a
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

// Fills model.blocks with the submodules that match the patterns. Without patterns, the blocks are the
// children of the torch::nn::Sequential. A module with one Sequential or ModuleList among its children
// counts, too: the children of that list take its place. A submodule without parameters joins the block
// before it. Submodules without parameters at the beginning join the first block that has some. Errors:
// ConfigError if the model has blocks, if two patterns match one module, or if a pattern or a function of
// `names` matches nothing. ConfigError also if a parameter belongs to no block, if a block cannot be called,
// or if the blocks cannot be found without patterns.
void find_blocks(Model& model, const BlockNames& names);

}  // namespace starling
