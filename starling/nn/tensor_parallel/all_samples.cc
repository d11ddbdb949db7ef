#include "starling/nn/tensor_parallel/all_samples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <map>
#include <set>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/nn/linear.h"
#include "starling/nn/tensor_parallel/regions.h"

namespace starling {
namespace {

std::map<std::string, Linear*> linears_of(const Model& model) {
  std::map<std::string, Linear*> linears;
  for (const auto& item : model.module->named_modules("", /*include_self=*/false)) {
    if (auto* linear = dynamic_cast<Linear*>(item.value().get())) linears.emplace(item.key(), linear);
  }
  return linears;
}

[[noreturn]] void refuse_name(const std::string& name, const std::map<std::string, Linear*>& linears) {
  std::vector<std::string> names;
  for (const auto& item : linears) names.push_back(item.first);
  const std::string near = nearest(name, names);
  throw ConfigError(
      "train.hybrid",
      fmt::format("\"{}\" is no fully connected layer of the model{}; there are: {}", name,
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

TensorSlices divide_for_all_samples(Model& model, TensorGroup& group,
                                    const std::vector<std::string>& layers) {
  torch::NoGradGuard no_grad;
  const std::map<std::string, Linear*> linears = linears_of(model);
  TensorSlices slices;
  for (const std::string& name : layers) {
    const auto it = linears.find(name);
    if (it == linears.end()) refuse_name(name, linears);
    Linear& layer = *it->second;
    const int64_t outputs = layer.bias.numel();
    if (outputs < group.size()) {
      throw ConfigError("train.hybrid",
                        fmt::format("{} has {} outputs, fewer than the {} ranks: leave it out", name, outputs,
                                    group.size()));
    }
    if (!slices.emplace(name + ".weight", cut_parameter(layer.weight, layer.out_dim(), group)).second)
      throw ConfigError("train.hybrid", name + " is named twice");
    slices.emplace(name + ".bias", cut_parameter(layer.bias, 0, group));
    layer.exchange_with({gather_samples(group, name), return_samples(group, outputs, name), false});
  }
  return slices;
}

std::vector<HybridLayer> hybrid_layers(const ModelFactory& factory, const ModelShape& shape,
                                       int64_t global_batch) {
  std::set<std::string> ours;
  for (const auto& item : linears_of(factory())) ours.insert(item.first);
  std::vector<HybridLayer> layers;
  for (const LayerVolume& volume : layer_volumes(factory, shape)) {
    if (volume.kind != LayerKind::kLinear || ours.count(volume.name) == 0) continue;
    layers.push_back({volume.name, volume.weights, volume.inputs * global_batch});
  }
  return layers;
}

}  // namespace starling
