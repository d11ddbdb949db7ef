#include "starling/nn/layers/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType computing_type(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const at::ScalarType type = computing_type(x);
    const at::Tensor wide = x.to(type);
    const at::Tensor norm = at::linalg_vector_norm(wide, 2, -1, /*keepdim=*/true);
    const at::Tensor r = norm.square_().div_(x.size(-1)).add_(eps).rsqrt_();
    saved->save_for_backward({x, weight, r});
    return (wide * r).mul_(weight.to(type)).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    const variable_list tensors = saved->get_saved_variables();
    const at::Tensor &x = tensors[0], &weight = tensors[1], &r = tensors[2];
    const at::ScalarType type = r.scalar_type();
    const at::Tensor dy = gradients[0].to(type), factor = weight.to(type);
    const at::Tensor n = x.to(type) * r;
    const at::Tensor products = (dy * n).reshape({-1, x.size(-1)});
    const at::Tensor means = at::mv(products, factor).div_(x.size(-1)).view(r.sizes());
    const at::Tensor dx = (dy * factor).addcmul_(n, means, -1).mul_(r);
    return {dx.to(x.scalar_type()), products.sum(0).to(weight.scalar_type()), {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, {x.size(-1)}, weight, eps);
}

}  // namespace starling
