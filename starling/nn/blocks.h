// Blocks: a model as an ordered list of steps that stages of a pipeline (or whatever else works block by block) can divide
// among themselves. The models of the zoo have them; a user's model gets them in a few lines:
//
//   Model model{net, [net](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
//   model.blocks = {make_block("conv", {net->conv}, [net](const at::Tensor& x) { return net->conv(x).relu(); }),
//                   make_block("fc", {net->fc}, [net](const at::Tensor& x) { return net->fc(x.flatten(1)); })};
//
// A skip connection over a place where the model may be cut travels with the activation: the block before the cut returns
// {h, skip}, the one behind it takes both. A module named by several blocks is shared ("tied"), as GPT's embedding is.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/nn/model.h"

namespace starling {

using Tensors = std::vector<at::Tensor>;

// A block with one tensor in and one out.
Block make_block(std::string name, std::vector<std::shared_ptr<torch::nn::Module>> modules,
                 std::function<at::Tensor(const at::Tensor&)> forward);

// Runs the blocks [begin, end).
Tensors run_blocks(const std::vector<Block>& blocks, size_t begin, size_t end, Tensors x);

// By block: the names (as in model.module) of the parameters or buffers that it uses.
struct BlockTensors {
  std::vector<std::string> parameters;
  std::vector<std::string> buffers;
};

// Errors: ConfigError (model.blocks) when the model has no blocks, or a parameter of the module is in none of them, or a
// block uses a module that is not part of the model.
std::vector<BlockTensors> tensors_of_blocks(const Model& model);

// By block: seconds of forward and backward of a mini-batch, the least of `rounds`; the loss counts with the last block.
// Leaves no gradients behind. Changes the running statistics of batch norm: measure on a replica that is not trained.
std::vector<double> measure_blocks(const Model& model, const at::Tensor& input, const at::Tensor& target,
                                   const Clock& clock, int rounds = 3);

}  // namespace starling
