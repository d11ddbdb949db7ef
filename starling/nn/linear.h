// Matrix products of the models: every one goes through linear(), so that one place decides how it is
// computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

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
  at::Tensor forward(const at::Tensor& x) const { return linear(x, weight, bias, layout_); }

  at::Tensor weight;
  at::Tensor bias;

 private:
  WeightLayout layout_;
};

}  // namespace starling
