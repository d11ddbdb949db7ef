// Models are made by a factory (design decision 1): verify, thread replicas and rejoining ranks need fresh
// ones, and a plain libtorch module cannot be cloned.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// A step of a model that can be cut (nn/blocks.h): a function of what the block before it returned, and the modules whose
// parameters and buffers it uses. One tensor goes in and out as a rule; more where a skip connection passes the cut. It
// must not change its input in place.
struct Block {
  std::string name;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> forward;
};

// The samples of the mini-batch that a model is about to see; set before each forward pass in training.
struct SampleKeys {
  at::Tensor keys;  // [n] int64, Batch::keys of the rows
};

// A module with one forward: input batch -> output (logits). What every model of the zoo is, and what a
// user's plain torch::nn::Module is wrapped into.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
  // mean loss of the batch (scalar): cross-entropy unless the user gives another
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
  // The same computation as `forward`, in pieces that stages can divide among themselves; empty: cannot be cut.
  std::vector<Block> blocks = {};
  // What the model draws its random numbers from (keyed_dropout.h); null where it draws none.
  std::shared_ptr<SampleKeys> samples = {};
};

// Makes a fresh model, parameters initialised from torch's default generator (seed it with torch::manual_seed
// first), fp32, on the CPU.
using ModelFactory = std::function<Model()>;

// What the data says about the model's ends.
struct ModelShape {
  std::vector<int64_t> input_shape;  // {1, 28, 28}, {3, 32, 32}, {tokens}
  int64_t classes = 10;              // or size of the vocabulary
  bool text = false;
};

// The input and outputs that a model of the zoo is published for: 224×224 pixels and 1000 classes for those of ImageNet,
// MNIST's for lenet5, model.widths for mlp, model.tokens and GPT-2's vocabulary for gpt.
ModelShape usual_shape(const ModelSpec& spec);

// What a model asks of the run it trains in.
struct ModelHooks {
  // Adds a tensor over all replicas in place; needed for model.batch_norm = sync, unused otherwise
  // (batch_norm.h).
  std::function<void(at::Tensor&)> all_reduce_sum;
};

// With model.batch_norm = sync and no hook the statistics are the process's own: right for one process alone.
// Errors: ConfigError for an unknown model (suggests the near one) or one that does not fit the data's shape.
ModelFactory zoo_model(const ModelSpec& spec, const ModelShape& shape, const ModelHooks& hooks = {});

// Mean cross-entropy: logits [n, c] with classes [n], or logits [n, t, c] with tokens [n, t].
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target);

struct ZooEntry {
  std::string name;
  std::string what;  // one line
};
const std::vector<ZooEntry>& zoo();

}  // namespace starling
