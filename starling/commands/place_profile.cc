#include "starling/commands/place_profile.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "starling/nn/blocks.h"
#include "starling/parallel/replica/replica.h"

namespace starling {
namespace {

constexpr int64_t kWords = 256;
constexpr int kRounds = 5;
constexpr double kLongestProfileS = 15;    // no round begins later
constexpr double kStatesPerParameter = 3;  // the parameter, its gradient and one optimizer state

double tensor_bytes(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
}

// Returns the name up to its first digit or dot: "inception4a" is of the kind "inception".
std::string kind_of(const std::string& name) {
  const std::string kind = name.substr(0, name.find_first_of("0123456789."));
  return kind.empty() ? "block" : kind;
}

// Returns the least time of several updates of the parameters.
double update_seconds(const std::vector<at::Tensor>& parameters, const Clock& clock) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& p : parameters) copies.push_back(p.detach().clone());
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const Nanoseconds begin = clock.now();
    for (size_t i = 0; i < copies.size(); ++i) copies[i].add_(parameters[i].detach(), -0.01);
    least = std::min(least, to_seconds(clock.now() - begin));
  }
  return least;
}

// Returns the least times of the passes of each block. next_round: as of profile_model().
std::vector<BlockSeconds> pass_seconds(const Model& model, const Tensors& inputs, const Tensors& targets,
                                       const Clock& clock, const std::function<bool(bool more)>& next_round) {
  const Nanoseconds begin = clock.now();
  std::vector<BlockSeconds> least;
  for (int round = 1;; ++round) {
    const std::vector<BlockSeconds> seconds = measure_block_passes(model, inputs, targets, clock, 1);
    if (least.empty()) least = seconds;
    for (size_t b = 0; b < seconds.size(); ++b) {
      least[b].forward = std::min(least[b].forward, seconds[b].forward);
      least[b].backward = std::min(least[b].backward, seconds[b].backward);
    }
    if (!next_round(round < kRounds && to_seconds(clock.now() - begin) < kLongestProfileS)) return least;
  }
}

// A branch of a block, with its share of the block's multiplications.
struct Branch {
  std::string name;
  double products = 0, parameter_bytes = 0, channels = 0;
};

// Returns the branches of a block, or nothing if the block has none or they have no convolution.
std::vector<Branch> branches_of(const Block& block) {
  std::vector<Branch> branches;
  if (block.modules.empty()) return branches;
  for (const auto& child : block.modules.front()->named_children()) {
    if (!child.key().starts_with("branch")) return {};
    Branch branch{child.key()};
    for (const at::Tensor& p : child.value()->parameters()) {
      branch.parameter_bytes += tensor_bytes(p);
      if (p.dim() != 4) continue;  // all convolutions of a block see equally many pixels
      branch.products += static_cast<double>(p.numel());
      branch.channels = static_cast<double>(p.size(0));
    }
    branches.push_back(std::move(branch));
  }
  const bool convolves =
      std::any_of(branches.begin(), branches.end(), [](const Branch& b) { return b.products > 0; });
  return branches.size() > 1 && convolves ? branches : std::vector<Branch>{};
}

// Appends the group of a block, or the groups of its branches and the group that joins them. Returns the
// number of the group whose output is that of the block.
int add_block(PlacementGraph& graph, const OperationGroup& whole, const std::vector<Branch>& branches) {
  OperationGroup last = whole;
  double products = 0, channels = 0;
  for (const Branch& branch : branches) {
    products += branch.products;
    channels += branch.channels;
  }
  std::vector<int> ends;
  for (const Branch& branch : branches) {
    const double share = branch.products / products, part = branch.channels / channels;
    OperationGroup group;
    group.name = whole.name + "." + branch.name;
    group.kind = branch.name;
    group.forward_s = share * whole.forward_s;
    group.backward_s = share * whole.backward_s;
    group.state_bytes = kStatesPerParameter * branch.parameter_bytes;
    group.update_s = whole.state_bytes > 0 ? whole.update_s * group.state_bytes / whole.state_bytes : 0;
    group.output_bytes = part * whole.output_bytes;
    group.kept_bytes = part * whole.kept_bytes;
    group.inputs = whole.inputs;
    last.state_bytes = std::max(0.0, last.state_bytes - group.state_bytes);
    last.update_s = std::max(0.0, last.update_s - group.update_s);
    graph.groups.push_back(std::move(group));
    ends.push_back(static_cast<int>(graph.groups.size()) - 1);
  }
  if (!branches.empty()) {
    last.name += ".join";
    last.kind = "join";
    last.forward_s = last.backward_s = 0;
    last.inputs = ends;
  }
  graph.groups.push_back(std::move(last));
  return static_cast<int>(graph.groups.size()) - 1;
}

}  // namespace

ModelShape placed_shape(const ModelSpec& spec, int64_t pixels) {
  ModelShape shape = usual_shape(spec);
  if (shape.text) {
    shape.classes = spec.vocabulary > 0 ? spec.vocabulary : kWords;
  } else if (pixels > 0 && shape.input_shape.size() == 3) {
    for (size_t side : {1, 2}) shape.input_shape[side] = std::min(shape.input_shape[side], pixels);
  }
  return shape;
}

PlacedModel placed_model(const ModelSpec& spec, int64_t pixels, int64_t samples, uint64_t seed) {
  const ModelShape shape = placed_shape(spec, pixels);
  PlacedModel model{zoo_model(spec, shape), {}};
  at::manual_seed(seed);
  std::vector<int64_t> sizes = {samples};
  sizes.insert(sizes.end(), shape.input_shape.begin(), shape.input_shape.end());
  if (shape.text) {
    model.batch.input = at::randint(shape.classes, sizes, at::kLong);
    model.batch.target = at::randint(shape.classes, sizes, at::kLong);
  } else {
    model.batch.input = at::randn(sizes);
    model.batch.target = at::randint(shape.classes, {samples}, at::kLong);
  }
  model.batch.keys = at::arange(samples, at::kLong);  // a model with dropout draws from the keys
  return model;
}

PlacementGraph profile_model(const PlacedModel& model, int micro_batches, bool branches, const Clock& clock,
                             const std::function<bool(bool more)>& next_round) {
  const Replica replica = make_replica(model.factory, at::kFloat, 0);
  const Batch part = model.batch.part(0, std::max<int64_t>(1, model.batch.size() / micro_batches));
  const Tensors inputs = inputs_of(replica.model, part, at::kFloat, /*channels_last=*/false);
  if (replica.model.samples) replica.model.samples->keys = part.keys;
  const std::vector<BlockSeconds> seconds =
      pass_seconds(replica.model, inputs, part.targets(), clock, next_round);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& p : replica.model.module->named_parameters()) parameters[p.key()] = p.value();
  const std::vector<BlockTensors> tensors = tensors_of_blocks(replica.model);
  const at::NoGradGuard no_grad;
  PlacementGraph graph;
  Tensors x = inputs;
  int before = -1;
  for (size_t b = 0; b < replica.model.blocks.size(); ++b) {
    const Block& block = replica.model.blocks[b];
    x = block.forward(x);
    OperationGroup group;
    group.name = block.name;
    group.kind = kind_of(block.name);
    group.forward_s = seconds[b].forward;
    group.backward_s = seconds[b].backward;
    std::vector<at::Tensor> own;
    for (const std::string& name : tensors[b].parameters) {
      own.push_back(parameters.at(name));
      group.state_bytes += kStatesPerParameter * tensor_bytes(own.back());
    }
    group.update_s = update_seconds(own, clock);
    for (const at::Tensor& y : x) group.output_bytes += tensor_bytes(y);
    group.kept_bytes = group.output_bytes;
    if (before >= 0) group.inputs = {before};
    before = add_block(graph, group, branches ? branches_of(block) : std::vector<Branch>{});
  }
  return graph;
}

}  // namespace starling
