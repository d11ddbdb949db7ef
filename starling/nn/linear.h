// Matrix products of the models: every one goes through linear(), so that one place decides how it is
// computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "starling/nn/layer_exchange.h"

namespace starling {

enum class WeightLayout {
  kOutIn,  // [out, in], torch::nn::Linear
  kInOut,  // [in, out], "Conv1D" of Hugging Face's GPT-2
};

// x [..., in] -> [..., out]; bias [out] or undefined. Differentiable.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, WeightLayout layout);

// The same by explicit sums over an outer product; slow, for tests.
at::Tensor linear_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            WeightLayout layout);

// Parameters "weight" and "bias". kOutIn is initialised as torch::nn::Linear (uniform within 1 / sqrt(in)),
// kInOut by N(0, 0.02) and a zero bias.
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in, int64_t out, WeightLayout layout = WeightLayout::kOutIn);
  at::Tensor forward(const at::Tensor& x) const;

  // Ranks divide the layer: weight and bias are this rank's parts from now on.
  void exchange_with(LayerExchange exchange) { exchange_ = std::move(exchange); }
  // For a caller that makes the product itself: the input as the product takes it, and whether only forward() will do,
  // because something happens to the output too.
  at::Tensor entered(const at::Tensor& x) const { return exchange_.enter ? exchange_.enter(x) : x; }
  bool has_leave() const { return exchange_.leave != nullptr; }

  // The dims of the weight.
  int out_dim() const { return layout_ == WeightLayout::kOutIn ? 0 : 1; }
  int in_dim() const { return 1 - out_dim(); }

  at::Tensor weight;
  at::Tensor bias;

 private:
  WeightLayout layout_;
  LayerExchange exchange_;
};

}  // namespace starling
