#include "starling/nn/tensor_parallel/divide.h"

#include <fmt/format.h>
#include <torch/types.h>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/nn/tensor_parallel/regions.h"

namespace starling {

Divider::Divider(Model& model, TensorGroup& group) : model_(model), group_(group) {
  for (const auto& item : model.module->named_modules("", /*include_self=*/true))
    modules_.emplace(item.value().get(), item.key());
  for (const auto& item : model.module->named_parameters())
    parameters_.emplace(item.value().unsafeGetTensorImpl(), item.key());
}

const std::string& Divider::name_of(const torch::nn::Module& module) const {
  const auto it = modules_.find(&module);
  STARLING_CHECK(it != modules_.end(), "a module that is not part of the model");
  return it->second;
}

void Divider::check_not_divided(const torch::nn::Module& layer) {
  STARLING_CHECK(divided_.insert(&layer).second, "layer {} is divided twice", name_of(layer));
}

void Divider::cut(at::Tensor& parameter, int64_t dim, int64_t sections) {
  const auto name = parameters_.find(parameter.unsafeGetTensorImpl());
  STARLING_CHECK(name != parameters_.end(), "a parameter that is not part of the model");
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
  division.slices.emplace(name->second, std::move(slice));
}

void Divider::by_columns(Linear& layer, int64_t sections) {
  check_not_divided(layer);
  cut(layer.weight, layer.out_dim(), sections);
  cut(layer.bias, 0, sections);
  layer.exchange_with({enter_region(group_, name_of(layer)), {}, false});
}

void Divider::by_rows(Linear& layer) {
  check_not_divided(layer);
  cut(layer.weight, layer.in_dim(), 1);
  layer.exchange_with({{}, sum_region(group_, name_of(layer)), true});
}

void Divider::gathered(Linear& layer) {
  const int64_t outputs = layer.bias.numel();
  by_columns(layer);
  const std::string& name = name_of(layer);
  layer.exchange_with({enter_region(group_, name), gather_region(group_, -1, outputs, name), false});
}

void Divider::gathered(Conv2d& layer) {
  check_not_divided(layer);
  const std::string& name = name_of(layer);
  if (layer.options.groups() != 1) {
    throw ConfigError("train.mesh", fmt::format("the convolution {} has {} groups; only convolutions of one "
                                                "group can be divided by output channel",
                                                name, layer.options.groups()));
  }
  const int64_t outputs = layer.weight.size(0);
  cut(layer.weight, 0, 1);
  if (layer.bias.defined()) cut(layer.bias, 0, 1);
  layer.exchange_with({enter_region(group_, name), gather_region(group_, 1, outputs, name), false});
}

void Divider::in_pairs(const std::vector<Linear*>& layers) {
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

int64_t Divider::rows_of_table(at::Tensor& table) {
  const int64_t rows = table.size(0);
  cut(table, 0, 1);
  return part_of_range(rows, size(), rank()).begin;
}

Division divide_model(Model& model, TensorGroup& group) {
  Divider divider(model, group);
  const auto modules = model.module->modules(/*include_self=*/true);
  for (const auto& module : modules) {
    if (auto* divisible = dynamic_cast<TensorDivisible*>(module.get())) divisible->divide(divider);
  }
  for (const auto& module : modules) {
    if (divider.is_divided(*module)) continue;
    if (auto* linear = dynamic_cast<Linear*>(module.get())) divider.gathered(*linear);
    if (auto* conv = dynamic_cast<Conv2d*>(module.get())) divider.gathered(*conv);
  }
  if (divider.division.slices.empty()) {
    throw ConfigError(
        "train.mesh",
        "the model has no layer that ranks could divide: make its layers starling::Linear and "
        "starling::Conv2d (starling/nn/tensor_parallel/divide.h), or leave out the tensor axis");
  }
  return std::move(divider.division);
}

}  // namespace starling
