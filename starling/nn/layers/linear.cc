#include "starling/nn/layers/linear.h"

#include <torch/nn/init.h>
#include <torch/types.h>

#include <cmath>

#include "starling/nn/layers/direct_linear.h"

namespace starling {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  WeightLayout layout) {
  if (layout == WeightLayout::kOutIn) return at::linear(x, weight, bias);
  if (has_direct_place(x, weight)) return direct_linear(x, weight, bias, /*in_out=*/true);
  const at::Tensor rows = x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
  at::Tensor y = bias.defined() ? at::addmm(bias, rows, weight) : at::mm(rows, weight);
  if (x.dim() == 2) return y;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(1);
  return y.view(shape);
}

at::Tensor linear_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            WeightLayout layout) {
  const at::Tensor in_out = layout == WeightLayout::kOutIn ? weight.t() : weight;
  const at::Tensor y = (x.unsqueeze(-1) * in_out).sum(-2);
  return bias.defined() ? y + bias : y;
}

LinearImpl::LinearImpl(int64_t in, int64_t out, WeightLayout layout, bool has_bias) : layout_(layout) {
  const bool out_in = layout == WeightLayout::kOutIn;
  weight = register_parameter("weight", out_in ? torch::empty({out, in}) : torch::empty({in, out}));
  if (has_bias) bias = register_parameter("bias", torch::zeros({out}));
  if (out_in) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(in));
    torch::nn::init::uniform_(weight, -bound, bound);
    if (has_bias) torch::nn::init::uniform_(bias, -bound, bound);
  } else {
    torch::nn::init::normal_(weight, 0.0, 0.02);
  }
}

at::Tensor LinearImpl::forward(const at::Tensor& x) const {
  const at::Tensor y = linear(entered(x), weight, exchange_.bias_last ? at::Tensor() : bias, layout_);
  const at::Tensor whole = exchange_.leave ? exchange_.leave(y) : y;
  return exchange_.bias_last && bias.defined() ? whole + bias : whole;
}

}  // namespace starling
