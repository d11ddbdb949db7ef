// The task of tests that compare a strategy with a simulation in plain loops. Rank k minimizes
// f_k(x) = 1/2 |x − c_k|², so its gradient is x − c_k. The center c_k differs between ranks.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "starling/nn/model.h"
#include "starling/parallel/strategy.h"

namespace starling {

// The number of elements of x. Strategies keep x in flat memory of kPaddedCenterElements elements.
inline constexpr int kCenterElements = 70;
inline constexpr size_t kPaddedCenterElements = 128;

// Returns element d of the center of a rank.
inline double center_of(int rank, int d) {
  return std::sin(1.3 * rank + 0.7 * d);
}

// Returns x before the first step.
inline std::vector<double> first_x() {
  std::vector<double> x;
  for (int d = 0; d < kCenterElements; ++d) x.push_back(-1 + 2.0 * d / (kCenterElements - 1));
  return x;
}

// Returns the elements of a tensor in fp64.
inline std::vector<double> doubles_in(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().to(torch::kDouble).contiguous();
  return {whole.data_ptr<double>(), whole.data_ptr<double>() + whole.numel()};
}

// Returns x of a strategy in fp64.
inline std::vector<double> evaluated_x(Strategy& strategy) {
  return doubles_in(strategy.evaluated().parameters[0].tensor);
}

// A factory of the model, whose only parameter is x. Its batches have one sample, the center.
template <at::ScalarType kType>
Model center_model() {
  auto module = std::make_shared<torch::nn::Module>();
  Model model;
  module->register_parameter("x", torch::tensor(first_x(), kType));
  model.module = module;
  model.forward = [m = module.get()](const at::Tensor& c) { return m->named_parameters()["x"] - c; };
  model.loss = [](const at::Tensor& y, const at::Tensor&) { return y.square().sum() / 2; };
  return model;
}

// Returns the batch whose center has the elements center(d).
inline Batch center_batch(at::ScalarType type, const std::function<double(int d)>& center) {
  at::Tensor c = torch::empty({1, kCenterElements}, type);
  for (int d = 0; d < kCenterElements; ++d) c[0][d] = center(d);
  return {c, torch::zeros({1}, type)};
}

// Returns the batch of a rank.
inline Batch center_batch(at::ScalarType type, int rank) {
  return center_batch(type, [rank](int d) { return center_of(rank, d); });
}

// Makes the steps `first` to `last` on `batch`, at the rate lr.
inline void train_on_center(Strategy& strategy, const Batch& batch, int first, int last, double lr) {
  for (int step = first; step <= last; ++step) {
    strategy.begin_step({step, lr, false});
    strategy.forward_backward(batch);
    strategy.update();
  }
}

}  // namespace starling
