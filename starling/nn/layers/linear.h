// Products of the models with weight matrices. All of them call linear(), so that one place decides how such
// a product is computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "starling/nn/layers/layer_exchange.h"

namespace starling {

// The order of a weight's dimensions.
enum class WeightLayout {
  kOutIn,  // [out, in], torch::nn::Linear
  kInOut,  // [in, out], "Conv1D" of Hugging Face's GPT-2
};

// Returns x [..., in] times the weight plus the bias: [..., out]. The bias is [out], or undefined for none.
// Differentiable.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, WeightLayout layout);

// Returns linear(), computed by explicit sums over an outer product. It is slow. Tests compare against it.
at::Tensor linear_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            WeightLayout layout);

// A fully connected layer with the parameters "weight" and "bias". kOutIn is initialized as torch::nn::Linear
// (uniform within 1 / sqrt(in)). kInOut is initialized by N(0, 0.02²) with a zero bias.
class LinearImpl : public torch::nn::Module {
 public:
  // Makes a layer with `in` input features and `out` output features. If `has_bias` is false, the layer has
  // no parameter "bias", and `bias` stays undefined.
  LinearImpl(int64_t in, int64_t out, WeightLayout layout = WeightLayout::kOutIn, bool has_bias = true);
  // Computes the layer, with the exchange before and after it if one is set.
  at::Tensor forward(const at::Tensor& x) const;

  // Tells the layer that weight and bias hold only this rank's parts from now on.
  void exchange_with(LayerExchange exchange) { exchange_ = std::move(exchange); }
  // For a caller that computes the product itself: returns the input as the product must take it.
  at::Tensor entered(const at::Tensor& x) const { return exchange_.enter ? exchange_.enter(x) : x; }
  // True if the exchange changes the output, so that only forward() gives the right result.
  bool has_leave() const { return exchange_.leave != nullptr; }

  // The dimension of the weight that holds the output features.
  int out_dim() const { return layout_ == WeightLayout::kOutIn ? 0 : 1; }
  // The dimension of the weight that holds the input features.
  int in_dim() const { return 1 - out_dim(); }
  // The number of output features whose weights this rank holds.
  int64_t outputs() const { return weight.size(out_dim()); }

  at::Tensor weight;  // [outputs, inputs], or [inputs, outputs] with WeightLayout::kInOut
  at::Tensor bias;    // [outputs]; undefined without a bias

 private:
  WeightLayout layout_;
  LayerExchange exchange_;
};

// Linear holds a LinearImpl, as torch::nn::Linear holds a torch::nn::LinearImpl.
TORCH_MODULE(Linear);

}  // namespace starling
