// A model as an ordered list of blocks. The stages of a pipeline divide these blocks among themselves. The
// models of the zoo define their blocks. A user's model defines them in a few lines:
//
//   Model model{net, [net](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
//   model.blocks = {
//       make_block("conv", {net->conv}, [net](const at::Tensor& x) { return net->conv(x).relu(); }),
//       make_block("fc", {net->fc}, [net](const at::Tensor& x) { return net->fc(x.flatten(1)); })};
//
// A skip connection that spans a possible cut travels with the activation. The block before the cut returns
// {h, skip}, and the block after the cut takes both tensors. A module that several blocks name is shared
// ("tied"), as GPT's embedding is.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/nn/model.h"

namespace starling {

// Returns a block that takes one tensor and returns one tensor.
Block make_block(std::string name, std::vector<std::shared_ptr<torch::nn::Module>> modules,
                 std::function<at::Tensor(const at::Tensor&)> forward);

// Runs the blocks [begin, end) on `x` and returns what the last of them returns.
Tensors run_blocks(const std::vector<Block>& blocks, size_t begin, size_t end, Tensors x);

// The names of the parameters and buffers that one block uses, as in model.module.
struct BlockTensors {
  std::vector<std::string> parameters;  // in the order of the module
  std::vector<std::string> buffers;     // in the order of the module
};

// Returns the parameters and buffers of each block. Errors: ConfigError (model.blocks) if the model has no
// blocks, or if a parameter of the module belongs to no block. ConfigError also if a block uses a module that
// is not part of the model, or if a parameter has two names.
std::vector<BlockTensors> tensors_of_blocks(const Model& model);

// Seconds of one block for a mini-batch.
struct BlockSeconds {
  double forward = 0;   // of the forward pass
  double backward = 0;  // of the backward pass
};

// Measures forward and backward of each block with one mini-batch. The results are minima over `rounds`. The
// loss counts with the last block. The function leaves no gradients behind. It changes the running statistics
// of batch norm, so measure on a replica that is not trained.
std::vector<BlockSeconds> measure_block_passes(const Model& model, const Tensors& inputs,
                                               const Tensors& targets, const Clock& clock, int rounds = 3);

// Returns the seconds that each block needs for forward and backward of one mini-batch: the sum of what
// measure_block_passes() returns.
std::vector<double> measure_blocks(const Model& model, const Tensors& inputs, const Tensors& targets,
                                   const Clock& clock, int rounds = 3);

// Returns an estimate of the work of each block, in multiplications of one forward pass. It depends on shapes
// only. A filter counts at every pixel, and a matrix at every row that fits it. The block's input or its
// output counts, whichever has more pixels or rows. Each element of the output counts as one multiplication
// more. Matrices do not count in a block whose inputs are integers, because they are lookup tables there. The
// function runs the blocks once, which changes the running statistics of batch norm.
std::vector<double> estimate_blocks(const Model& model, const Tensors& inputs);

}  // namespace starling
