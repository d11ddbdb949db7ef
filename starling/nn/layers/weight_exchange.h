// The exchange of a torch::nn::Linear that is sharded over several ranks, kept with its weight
// (nn/tensor_parallel/plain_linear.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "starling/nn/layers/layer_exchange.h"

namespace starling {

// Keeps the exchange of a layer with its weight. As a hook it does nothing.
struct WeightExchange final : torch::autograd::FunctionPreHook {
  WeightExchange(LayerExchange of, at::Tensor with) : exchange(std::move(of)), bias(std::move(with)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    return gradients;
  }

  // Returns the exchange that is kept with this weight. Null if there is none.
  static const WeightExchange* of(const at::TensorBase& weight) {
    const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(weight);
    if (meta == nullptr) return nullptr;
    for (const auto& hook : meta->hooks_) {
      if (const auto* found = dynamic_cast<const WeightExchange*>(hook.get())) return found;
    }
    return nullptr;
  }

  LayerExchange exchange;
  at::Tensor bias;  // may be undefined
};

}  // namespace starling
