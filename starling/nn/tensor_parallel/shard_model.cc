#include "starling/nn/tensor_parallel/shard_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/tensor_parallel/plain_linear.h"

namespace starling {

ModelSharder::ModelSharder(Model& model, TensorGroup& group) : model_(model), group_(group) {
  for (const auto& item : model.module->named_modules("", /*include_self=*/true))
    modules_.emplace(item.value().get(), item.key());
  for (const auto& item : model.module->named_parameters())
    parameters_.emplace(item.value().unsafeGetTensorImpl(), item.key());
}

const std::string& ModelSharder::name_of(const torch::nn::Module& module) const {
  const auto it = modules_.find(&module);
  STARLING_CHECK(it != modules_.end(), "the module is not part of the model");
  return it->second;
}

void ModelSharder::check_not_sharded(const torch::nn::Module& layer) {
  STARLING_CHECK(sharded_.insert(&layer).second, "layer {} is sharded twice", name_of(layer));
}

void ModelSharder::cut(at::Tensor& parameter, int64_t dim, int64_t sections) {
  const auto name = parameters_.find(parameter.unsafeGetTensorImpl());
  if (name == parameters_.end())
    throw ConfigError(
        "train.mesh",
        "a layer that is sharded has a weight or bias that is no parameter of the model; register it "
        "by register_parameter()");
  if (sharding.slices.contains(name->second)) {
    throw ConfigError("train.mesh", fmt::format("{} is a parameter of several layers, and ranks can shard "
                                                "it for one layer only",
                                                name->second));
  }
  TensorSlice slice;
  slice.dim = dim;
  slice.sections = sections;
  slice.sizes = parameter.sizes().vec();
  if (slice.width() < size()) {
    throw ConfigError(
        "train.mesh",
        fmt::format("{} has {} entries along dim {}, which cannot be divided among the {} ranks "
                    "of the tensor axis: use --mesh tensor={} or less",
                    name->second, slice.width(), dim, size(), slice.width()));
  }
  torch::NoGradGuard no_grad;
  parameter.set_data(slice.cut(parameter, size(), rank()));
  sharding.slices.emplace(name->second, std::move(slice));
}

void ModelSharder::cut_columns(LinearImpl& layer, int64_t sections) {
  check_not_sharded(layer);
  cut(layer.weight, layer.out_dim(), sections);
  if (layer.bias.defined()) cut(layer.bias, 0, sections);
}

void ModelSharder::by_columns(LinearImpl& layer, int64_t sections) {
  cut_columns(layer, sections);
  layer.exchange_with({enter_region(group_, name_of(layer)), {}, false});
}

TensorFunction ModelSharder::by_columns(const std::vector<LinearImpl*>& layers, const std::string& name) {
  for (LinearImpl* layer : layers) cut_columns(*layer, 1);
  return enter_region(group_, name);
}

void ModelSharder::by_rows(LinearImpl& layer) {
  check_not_sharded(layer);
  cut(layer.weight, layer.in_dim(), 1);
  layer.exchange_with({{}, sum_region(group_, name_of(layer)), true});
}

void ModelSharder::gathered(LinearImpl& layer) {
  const int64_t outputs = layer.outputs();
  by_columns(layer);
  const std::string& name = name_of(layer);
  layer.exchange_with({enter_region(group_, name), gather_region(group_, -1, outputs, name), false});
}

void ModelSharder::gathered(Conv2dImpl& layer) {
  check_not_sharded(layer);
  const std::string& name = name_of(layer);
  if (layer.options.groups() != 1) {
    throw ConfigError("train.mesh", fmt::format("the convolution {} has {} groups; only convolutions of one "
                                                "group can be sharded by output channel",
                                                name, layer.options.groups()));
  }
  const int64_t outputs = layer.weight.size(0);
  cut(layer.weight, 0, 1);
  if (layer.bias.defined()) cut(layer.bias, 0, 1);
  layer.exchange_with({enter_region(group_, name), gather_region(group_, 1, outputs, name), false});
}

void ModelSharder::in_pairs(const std::vector<LinearImpl*>& layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (i % 2 == 1) {
      by_rows(*layers[i]);
    } else if (i + 1 < layers.size()) {
      by_columns(*layers[i]);
    } else {
      gathered(*layers[i]);
    }
  }
}

int64_t ModelSharder::rows_of_table(at::Tensor& table) {
  const int64_t rows = table.size(0);
  cut(table, 0, 1);
  return part_of_range(rows, size(), rank()).begin;
}

namespace {

constexpr const char* kPlan = "tensor plan";

bool is_linear(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::LinearImpl*>(&module) != nullptr ||
         dynamic_cast<const LinearImpl*>(&module) != nullptr;
}

// Returns the names of a submodule, which the model may have registered in several places.
std::vector<std::string> all_names(const torch::nn::Module& model, const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (item.value().get() == &module) names.push_back(item.key());
  }
  return names;
}

// Returns a function that refuses inputs of other than `features` features and then calls `next`, unless that
// is empty.
TensorFunction requires_features(std::string layer, int64_t features, TensorFunction next) {
  return [layer = std::move(layer), features, next = std::move(next)](const at::Tensor& x) {
    if (x.size(-1) == features) return next ? next(x) : x;
    throw ConfigError(kPlan,
                      fmt::format("the layer {} takes {} features and gets {}, because the layers before "
                                  "it are sharded in another way; a layer by columns is followed by "
                                  "elementwise functions and a layer by rows",
                                  layer, features, x.size(-1)));
  };
}

}  // namespace

LayerExchange ModelSharder::rows_of_any_input(const std::string& name, int64_t inputs) {
  const int64_t own = part_of_range(inputs, size(), rank()).count();
  const TensorFunction part = requires_features(name, own, {}),
                       whole = split_region(group_, -1, inputs, name);
  const auto enter = [inputs, part, whole](const at::Tensor& x) {
    return x.size(-1) == inputs ? whole(x) : part(x);
  };
  return {enter, sum_region(group_, name), true};
}

void ModelSharder::shard_plain(torch::nn::LinearImpl& layer, LayerCut cut_by) {
  check_not_sharded(layer);
  const std::string& name = name_of(layer);
  const int64_t outputs = layer.weight.size(0), inputs = layer.weight.size(1);
  if (cut_by == LayerCut::kRow) {
    cut(layer.weight, 1, 1);
    return exchange_with(layer, rows_of_any_input(name, inputs));
  }
  cut(layer.weight, 0, 1);
  if (layer.bias.defined()) cut(layer.bias, 0, 1);
  LayerExchange exchange{requires_features(name, inputs, enter_region(group_, name)), {}, false};
  if (cut_by == LayerCut::kGathered) exchange.leave = gather_region(group_, -1, outputs, name);
  exchange_with(layer, std::move(exchange));
}

void ModelSharder::divide_named(const std::string& name, torch::nn::Module& layer, LayerCut cut_by) {
  const std::vector<std::string> names = all_names(*model_.module, layer);
  if (names.size() > 1) {
    throw ConfigError(kPlan, fmt::format("the layers {} are one module, which cannot be sharded; leave it "
                                         "out of the plan, or register it once",
                                         fmt::join(names, " and ")));
  }
  if (is_sharded(layer)) {
    throw ConfigError(kPlan, fmt::format("the layer {} is sharded by the module that contains it "
                                         "(TensorShardable); leave it out of the plan",
                                         name));
  }
  if (auto* plain = dynamic_cast<torch::nn::LinearImpl*>(&layer)) return shard_plain(*plain, cut_by);
  auto& linear = dynamic_cast<LinearImpl&>(layer);
  if (cut_by == LayerCut::kColumn) return by_columns(linear);
  if (cut_by == LayerCut::kGathered) return gathered(linear);
  const int64_t inputs = linear.weight.size(linear.in_dim());
  by_rows(linear);
  linear.exchange_with(rows_of_any_input(name, inputs));
}

void ModelSharder::by_plan(const TensorPlan& plan) {
  std::vector<bool> used(plan.size());
  std::vector<std::string> layers;
  for (const auto& item : model_.module->named_modules("", /*include_self=*/false)) {
    if (!is_linear(*item.value())) continue;
    layers.push_back(item.key());
    const auto matches = [&](const LayerPlan& p) {
      return fnmatch(p.pattern.c_str(), item.key().c_str(), 0) == 0;
    };
    const auto found = std::find_if(plan.begin(), plan.end(), matches);
    if (found == plan.end()) continue;
    used[static_cast<size_t>(found - plan.begin())] = true;
    divide_named(item.key(), *item.value(), found->cut);
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused == used.end()) return;
  throw ConfigError(kPlan,
                    fmt::format("\"{}\" matches no fully connected layer that an earlier pattern leaves; "
                                "the layers are {}",
                                plan[static_cast<size_t>(unused - used.begin())].pattern,
                                layers.empty() ? "none" : fmt::format("{}", fmt::join(layers, ", "))));
}

ModelSharding shard_model(Model& model, TensorGroup& group, const TensorPlan& plan, WholeModel whole) {
  ModelSharder sharder(model, group);
  const auto modules = model.module->modules(/*include_self=*/true);
  for (const auto& module : modules) {
    if (auto* divisible = dynamic_cast<TensorShardable*>(module.get())) divisible->shard(sharder);
  }
  sharder.by_plan(plan);
  for (const auto& module : modules) {
    if (sharder.is_sharded(*module)) continue;
    if (auto* linear = dynamic_cast<LinearImpl*>(module.get())) sharder.gathered(*linear);
    if (auto* conv = dynamic_cast<Conv2dImpl*>(module.get())) sharder.gathered(*conv);
  }
  if (sharder.sharding.slices.empty() && whole == WholeModel::kRefuse) {
    throw ConfigError("train.mesh",
                      "the model has no layer that ranks could shard: name its torch::nn::Linear layers in "
                      "FitOptions::tensor_plan(), make layers starling::Linear and starling::Conv2d "
                      "(starling/nn/tensor_parallel/shard_model.h), or leave out the tensor axis");
  }
  return std::move(sharder.sharding);
}

}  // namespace starling
