#include "starling/nn/tensor_parallel/shard_for_all_samples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <map>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/nn/layers/linear.h"
#include "starling/nn/tensor_parallel/regions.h"

namespace starling {
namespace {

std::map<std::string, LinearImpl*> linears_of(const Model& model) {
  std::map<std::string, LinearImpl*> linears;
  for (const auto& item : model.module->named_modules("", /*include_self=*/false)) {
    if (auto* linear = dynamic_cast<LinearImpl*>(item.value().get())) linears.emplace(item.key(), linear);
  }
  return linears;
}

[[noreturn]] void refuse_name(const std::string& name, const std::map<std::string, LinearImpl*>& linears) {
  std::vector<std::string> names;
  for (const auto& item : linears) names.push_back(item.first);
  const std::string near = nearest(name, names);
  throw ConfigError(
      "train.hybrid",
      fmt::format("\"{}\" is not a fully connected layer of the model{}; the model has: {}", name,
                  near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near), fmt::join(names, " ")));
}

TensorSlice cut_parameter(at::Tensor& parameter, int64_t dim, const TensorGroup& group) {
  TensorSlice slice;
  slice.dim = dim;
  slice.sizes = parameter.sizes().vec();
  parameter.set_data(slice.cut(parameter, group.size(), group.rank()));
  return slice;
}

}  // namespace

TensorSlices shard_for_all_samples(Model& model, TensorGroup& group, const std::vector<std::string>& layers) {
  torch::NoGradGuard no_grad;
  const std::map<std::string, LinearImpl*> linears = linears_of(model);
  TensorSlices slices;
  for (const std::string& name : layers) {
    const auto it = linears.find(name);
    if (it == linears.end()) refuse_name(name, linears);
    LinearImpl& layer = *it->second;
    const int64_t outputs = layer.outputs();
    if (outputs < group.size()) {
      throw ConfigError("train.hybrid",
                        fmt::format("{} has {} outputs, fewer than the {} ranks: leave it out", name, outputs,
                                    group.size()));
    }
    if (!slices.emplace(name + ".weight", cut_parameter(layer.weight, layer.out_dim(), group)).second)
      throw ConfigError("train.hybrid", name + " is named twice; name each layer once");
    if (layer.bias.defined()) slices.emplace(name + ".bias", cut_parameter(layer.bias, 0, group));
    layer.exchange_with({gather_samples(group, name), return_samples(group, outputs, name), false});
  }
  return slices;
}

double HybridLayer::model_elements(int ranks) const {
  const double p = ranks;
  const double each_way = input_gradient ? 2 : 1;
  return each_way * static_cast<double>(inputs) * (p - 1) / p +
         2 * static_cast<double>(outputs) * (p - 1) / (p * p);
}

double HybridLayer::data_elements(int ranks) const {
  const double p = ranks;
  return 2 * static_cast<double>(parameters) * (p - 1) / p;
}

bool HybridLayer::model_parallel(int ranks) const {
  return features >= ranks && model_elements(ranks) < data_elements(ranks);
}

std::vector<HybridLayer> hybrid_layers(const ModelFactory& factory, const ModelShape& shape,
                                       int64_t global_batch) {
  struct Sizes {
    int64_t features, biases;
  };
  std::map<std::string, Sizes> sizes;
  const Model model = factory();
  for (const auto& [name, linear] : linears_of(model))
    sizes[name] = {linear->outputs(), linear->bias.defined() ? linear->bias.numel() : 0};
  std::vector<HybridLayer> layers;
  for (const LayerVolume& volume : layer_volumes(factory, shape)) {
    const auto ours = sizes.find(volume.name);
    if (volume.kind != LayerKind::kLinear || ours == sizes.end()) continue;
    auto layer = std::find_if(layers.begin(), layers.end(),
                              [&](const HybridLayer& other) { return other.name == volume.name; });
    if (layer == layers.end()) {
      layers.push_back({.name = volume.name,
                        .parameters = volume.weights + ours->second.biases,
                        .features = ours->second.features});
      layer = layers.end() - 1;
    }
    layer->inputs += volume.inputs * global_batch;
    layer->outputs += volume.outputs * global_batch;
    layer->input_gradient = layer->input_gradient || volume.input_gradient;
  }
  return layers;
}

}  // namespace starling
