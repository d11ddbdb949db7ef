#include "starling/nn/blocks.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {

Block make_block(std::string name, std::vector<std::shared_ptr<torch::nn::Module>> modules,
                 std::function<at::Tensor(const at::Tensor&)> forward) {
  return {name, std::move(modules), [name, forward = std::move(forward)](const Tensors& x) -> Tensors {
            STARLING_CHECK(x.size() == 1, "block {} takes one tensor, got {}", name, x.size());
            return {forward(x[0])};
          }};
}

Tensors run_blocks(const std::vector<Block>& blocks, size_t begin, size_t end, Tensors x) {
  for (size_t b = begin; b < end; ++b) x = blocks[b].forward(x);
  return x;
}

namespace {

using Names = std::map<const c10::TensorImpl*, std::string>;

// Adds to `into` the names of the `tensors` that one module of a block uses, unless `into` has them already.
template <typename Dict>
void add_names(const Dict& tensors, const Names& names, const std::string& block,
               std::vector<std::string>& into) {
  for (const auto& item : tensors) {
    const auto it = names.find(item.value().unsafeGetTensorImpl());
    if (it == names.end()) {
      throw ConfigError(
          "model.blocks",
          fmt::format("block \"{}\" uses a tensor \"{}\" that is not part of the model's module; "
                      "register its module with the model's",
                      block, item.key()));
    }
    if (std::find(into.begin(), into.end(), it->second) == into.end()) into.push_back(it->second);
  }
}

}  // namespace

std::vector<BlockTensors> tensors_of_blocks(const Model& model) {
  if (model.blocks.empty()) {
    throw ConfigError(
        "model.blocks",
        "the model has no blocks at which it can be cut; fill Model::blocks (starling/nn/blocks.h), or "
        "train it without stages");
  }
  Names names;
  for (const auto& p : model.module->named_parameters()) names[p.value().unsafeGetTensorImpl()] = p.key();
  for (const auto& b : model.module->named_buffers()) names[b.value().unsafeGetTensorImpl()] = b.key();
  std::vector<BlockTensors> result(model.blocks.size());
  std::set<std::string> used;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    for (const auto& module : model.blocks[b].modules) {
      add_names(module->named_parameters(), names, model.blocks[b].name, result[b].parameters);
      add_names(module->named_buffers(), names, model.blocks[b].name, result[b].buffers);
    }
    used.insert(result[b].parameters.begin(), result[b].parameters.end());
  }
  for (const auto& p : model.module->named_parameters()) {
    if (used.count(p.key()) > 0) continue;
    if (const std::string& other = names.at(p.value().unsafeGetTensorImpl()); other != p.key()) {
      throw ConfigError("model.blocks",
                        fmt::format("\"{}\" and \"{}\" are one parameter; register a layer once that "
                                    "forward() calls twice, and list it in Block::modules of each block that "
                                    "calls it",
                                    p.key(), other));
    }
    throw ConfigError("model.blocks", fmt::format("parameter \"{}\" belongs to no block", p.key()));
  }
  return result;
}

namespace {

// Returns the tensors as leaves, whose gradients the next block's backward fills.
Tensors detached(const Tensors& tensors) {
  Tensors leaves;
  for (const at::Tensor& t : tensors) leaves.push_back(t.detach().requires_grad_(t.requires_grad()));
  return leaves;
}

// Returns the seconds of one forward and backward pass, by block.
std::vector<BlockSeconds> time_blocks(const Model& model, const Tensors& first, const Tensors& targets,
                                      const Clock& clock) {
  const size_t n = model.blocks.size();
  std::vector<BlockSeconds> seconds(n);
  std::vector<Tensors> inputs(n), outputs(n);
  for (size_t b = 0; b < n; ++b) {
    inputs[b] = b == 0 ? first : detached(outputs[b - 1]);
    const Nanoseconds begin = clock.now();
    outputs[b] = model.blocks[b].forward(inputs[b]);
    if (b + 1 == n) outputs[b] = {model.loss.of(outputs[b], targets).mean()};
    seconds[b].forward = to_seconds(clock.now() - begin);
  }
  for (size_t b = n; b-- > 0;) {
    Tensors roots, gradients;
    for (size_t i = 0; i < outputs[b].size(); ++i) {
      if (!outputs[b][i].requires_grad()) continue;
      if (b + 1 < n && !inputs[b + 1][i].grad().defined()) continue;
      roots.push_back(outputs[b][i]);
      gradients.push_back(b + 1 < n ? inputs[b + 1][i].grad() : at::Tensor());
    }
    const Nanoseconds begin = clock.now();
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    seconds[b].backward = to_seconds(clock.now() - begin);
  }
  return seconds;
}

}  // namespace

std::vector<BlockSeconds> measure_block_passes(const Model& model, const Tensors& inputs,
                                               const Tensors& targets, const Clock& clock, int rounds) {
  tensors_of_blocks(model);
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<BlockSeconds> least(model.blocks.size(), {kNone, kNone});
  for (int round = 0; round < rounds; ++round) {
    const std::vector<BlockSeconds> seconds = time_blocks(model, inputs, targets, clock);
    for (size_t b = 0; b < seconds.size(); ++b) {
      least[b].forward = std::min(least[b].forward, seconds[b].forward);
      least[b].backward = std::min(least[b].backward, seconds[b].backward);
    }
  }
  for (const at::Tensor& p : model.module->parameters()) p.mutable_grad().reset();
  return least;
}

std::vector<double> measure_blocks(const Model& model, const Tensors& inputs, const Tensors& targets,
                                   const Clock& clock, int rounds) {
  std::vector<double> sums;
  for (const BlockSeconds& block : measure_block_passes(model, inputs, targets, clock, rounds))
    sums.push_back(block.forward + block.backward);
  return sums;
}

namespace {

// Returns at how many positions of the tensors a weight is used. A filter is used at every pixel. A matrix is
// used for every row that has its width or its height, and otherwise for every sample.
int64_t most_positions(const Tensors& tensors, const at::Tensor& weight) {
  int64_t most = 0;
  for (const at::Tensor& t : tensors) {
    if (!t.is_floating_point() || t.dim() < 2 || t.numel() == 0) continue;
    const bool rows = t.size(-1) == weight.size(0) || t.size(-1) == weight.size(1);
    const int64_t samples = t.size(0);
    const int64_t positions = weight.dim() > 2 ? (t.dim() > 2 ? t.numel() / t.size(1) : samples)
                              : rows           ? t.numel() / t.size(-1)
                                               : samples;
    most = std::max(most, positions);
  }
  return most;
}

}  // namespace

std::vector<double> estimate_blocks(const Model& model, const Tensors& inputs) {
  const std::vector<BlockTensors> tensors = tensors_of_blocks(model);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& p : model.module->named_parameters()) parameters[p.key()] = p.value();
  const at::NoGradGuard no_grad;
  std::vector<double> work;
  Tensors x = inputs;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    Tensors y = model.blocks[b].forward(x);
    double products = 0;
    for (const at::Tensor& t : y) products += static_cast<double>(t.numel());
    for (const std::string& name : tensors[b].parameters) {
      const at::Tensor& weight = parameters.at(name);
      const int64_t positions = weight.dim() < 2 ? 0 : most_positions(x, weight);
      if (positions == 0) continue;
      products += static_cast<double>(weight.numel()) *
                  static_cast<double>(std::max(positions, most_positions(y, weight)));
    }
    work.push_back(products);
    x = std::move(y);
  }
  return work;
}

}  // namespace starling
