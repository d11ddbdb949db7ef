#include "starling/nn/model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "starling/base/error.h"

namespace starling {

WeightedLoss::WeightedLoss(at::Tensor sum, double weight) : sum(std::move(sum)), weight(weight) {
  TORCH_CHECK(std::isfinite(weight) && weight >= 0, "the weight of the loss is ", weight,
              "; it must be finite and at least 0");
}

WeightedLoss::WeightedLoss(at::Tensor sum, const at::Tensor& weight)
    : WeightedLoss(std::move(sum), weight.item<double>()) {}

at::Tensor WeightedLoss::mean() const {
  return weight == 1 || weight == 0 ? sum : sum / weight;
}

const at::Tensor& ModelForward::only(const Tensors& inputs) {
  if (inputs.size() == 1) return inputs[0];
  throw ConfigError("Model::forward",
                    fmt::format("the function takes one tensor, but the data set has {} inputs; let it take "
                                "const starling::Tensors&",
                                inputs.size()));
}

at::Tensor ModelForward::operator()(const at::Tensor& input) const {
  Tensors outputs = forward_({input});
  if (outputs.size() == 1) return std::move(outputs[0]);
  throw ConfigError("Model::forward",
                    fmt::format("one output is needed here, but the model has {}", outputs.size()));
}

at::Tensor ModelLoss::operator()(const at::Tensor& output, const at::Tensor& target) const {
  return loss_({output}, {target}).mean();
}

void ModelLoss::check_pair(const Tensors& outputs, const Tensors& targets) {
  if (outputs.size() == 1 && targets.size() == 1) return;
  throw ConfigError(
      "Model::loss",
      fmt::format("the function takes one output and one target, but the model has {} output(s) and the "
                  "data set {} target(s); let it take all of them",
                  outputs.size(), targets.size()));
}

}  // namespace starling
