#include "starling/nn/layers/bias_gelu.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "starling/nn/layers/bias_gelu_kernels.h"

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowsAtOnce = 16;

// Returns `tensor` by an operation of libtorch, which announces that its memory is read. A sharded parameter
// has memory from then on (parallel/zero/parameter_unit.h).
at::Tensor announced(const at::Tensor& tensor) {
  return tensor.detach();
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, const at::Tensor& bias) {
    const at::Tensor whole = x.contiguous(), b = announced(bias.contiguous());
    saved->save_for_backward({whole, b});
    at::Tensor y = at::empty_like(whole);
    const int64_t n = b.numel();
    const auto *in = whole.const_data_ptr<float>(), *add = b.const_data_ptr<float>();
    auto* out = y.mutable_data_ptr<float>();
    at::parallel_for(0, whole.numel() / n, kRowsAtOnce, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) gelu_row(in + r * n, add, out + r * n, n);
    });
    return y;
  }

  static variable_list backward(AutogradContext* saved, variable_list gradients) {
    const variable_list tensors = saved->get_saved_variables();
    const at::Tensor &x = tensors[0], b = announced(tensors[1]);
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    const int64_t n = b.numel(), rows = x.numel() / n;
    // Each range of rows has a partial sum of its own, so the result does not depend on the number of
    // threads.
    const int64_t parts = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
    at::Tensor sums = at::zeros({parts, n}, x.options());
    const auto *in = x.const_data_ptr<float>(), *add = b.const_data_ptr<float>(),
               *up = dy.const_data_ptr<float>();
    auto *out = dx.mutable_data_ptr<float>(), *sum = sums.mutable_data_ptr<float>();
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * kRowsAtOnce; r < std::min(rows, end * kRowsAtOnce); ++r) {
        gelu_gradient_row(in + r * n, add, up + r * n, out + r * n, sum + r / kRowsAtOnce * n, n);
      }
    });
    return {dx, sums.sum(0)};
  }
};

bool fused(const at::Tensor& x, const at::Tensor& bias) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat && bias.scalar_type() == at::kFloat &&
         bias.dim() == 1 && x.dim() >= 1 && x.size(-1) == bias.numel() && x.numel() > 0;
}

}  // namespace

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias) {
  return fused(x, bias) ? BiasGelu::apply(x, bias) : bias_gelu_reference(x, bias);
}

at::Tensor bias_gelu_reference(const at::Tensor& x, const at::Tensor& bias) {
  return at::gelu(x + bias, "tanh");
}

}  // namespace starling
