#include "starling/nn/layers/conv_im2col.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Kernel {
  at::IntArrayRef size, dilation, padding, stride;
};

// Returns Vᵀ: c · kernel_h · kernel_w rows and one column per position. A product with Vᵀ writes [o,
// positions].
at::Tensor columns_of(const at::Tensor& picture, const Kernel& k) {
  return at::im2col(picture, k.size, k.dilation, k.padding, k.stride);
}

// Returns the geometry in the form that autograd stores: stride, padding and dilation, two numbers each.
std::vector<int64_t> flat(const ConvGeometry& g) {
  return {g.stride[0], g.stride[1], g.padding[0], g.padding[1], g.dilation[0], g.dilation[1]};
}

Kernel kernel_of(const at::Tensor& weight, const std::vector<int64_t>& geometry) {
  const at::IntArrayRef all = geometry;
  return {weight.sizes().slice(2), all.slice(4, 2), all.slice(2, 2), all.slice(0, 2)};
}

int64_t positions_along(int64_t dim, const at::Tensor& x, const Kernel& k) {
  const int64_t reach = k.dilation[dim] * (k.size[dim] - 1) + 1;
  return (x.size(2 + dim) + 2 * k.padding[dim] - reach) / k.stride[dim] + 1;
}

// An empty `b` means no bias, because autograd takes no undefined tensor here.
struct Im2colConv2d : torch::autograd::Function<Im2colConv2d> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& b, std::vector<int64_t> geometry) {
    saved->save_for_backward({x, w});
    saved->saved_data["geometry"] = geometry;
    saved->saved_data["with_bias"] = b.numel() > 0;
    at::AutoDispatchBelowADInplaceOrView below;
    const Kernel k = kernel_of(w, geometry);
    const at::Tensor y =
        at::empty({x.size(0), w.size(0), positions_along(0, x, k), positions_along(1, x, k)}, x.options());
    const at::Tensor filters = w.reshape({w.size(0), -1}), rows = y.flatten(2);
    const at::Tensor offsets = b.numel() > 0 ? b.unsqueeze(1) : b;
    for (int64_t i = 0; i < x.size(0); ++i) {
      at::Tensor place = rows[i];
      const at::Tensor columns = columns_of(x[i], k);
      if (b.numel() > 0) {
        at::addmm_out(place, offsets, filters, columns);
      } else {
        at::mm_out(place, filters, columns);
      }
    }
    return y;
  }

  static variable_list backward(AutogradContext* saved, variable_list gradients) {
    const variable_list tensors = saved->get_saved_variables();
    const at::Tensor &x = tensors[0], &w = tensors[1];
    const std::vector<int64_t> geometry = saved->saved_data["geometry"].toIntVector();
    const Kernel k = kernel_of(w, geometry);
    const at::NoGradGuard no_grad;
    const at::Tensor dy = gradients[0].contiguous().flatten(2), filters = w.reshape({w.size(0), -1});
    at::Tensor dx = saved->needs_input_grad(0) ? at::empty(x.sizes(), x.options()) : at::Tensor();
    at::Tensor dw = saved->needs_input_grad(1) ? at::zeros(filters.sizes(), w.options()) : at::Tensor();
    for (int64_t i = 0; i < x.size(0); ++i) {
      if (dw.defined()) dw.addmm_(dy[i], columns_of(x[i], k).t());
      if (!dx.defined()) continue;
      at::Tensor place = dx[i];
      at::col2im_out(place, filters.t().mm(dy[i]), x.sizes().slice(2), k.size, k.dilation, k.padding,
                     k.stride);
    }
    variable_list result(4);
    result[0] = dx;
    if (dw.defined()) result[1] = dw.view(w.sizes());
    if (saved->saved_data["with_bias"].toBool() && saved->needs_input_grad(2)) {
      result[2] = dy.sum(at::IntArrayRef{0, 2});
    }
    return result;
  }
};

bool is_for_im2col(const at::Tensor& x, const at::Tensor& weight, bool transposed, int64_t groups) {
  return x.dim() == 4 && weight.dim() == 4 && !transposed && groups == 1 && x.is_floating_point() &&
         x.numel() > 0 && x.size(1) == weight.size(1) && x.scalar_type() == weight.scalar_type();
}

void read_pair(at::IntArrayRef values, int64_t (&pair)[2]) {
  pair[0] = values.front();
  pair[1] = values.back();
}

at::Tensor convolution_of_any_model(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                                    at::IntArrayRef output_padding, int64_t groups) {
  if (!is_for_im2col(x, weight, transposed, groups)) {
    const at::Context& c = at::globalContext();
    return at::_convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
                            c.benchmarkCuDNN(), c.deterministicCuDNN(), c.userEnabledCuDNN(),
                            /*allow_tf32=*/false);
  }
  ConvGeometry g;
  read_pair(stride, g.stride);
  read_pair(padding, g.padding);
  read_pair(dilation, g.dilation);
  return im2col_conv2d(x, weight, bias.value_or(at::Tensor()), g);
}

}  // namespace

at::Tensor image_patches(const at::Tensor& picture, int64_t kernel_h, int64_t kernel_w,
                         const ConvGeometry& g) {
  return columns_of(picture, {{kernel_h, kernel_w}, g.dilation, g.padding, g.stride}).t();
}

at::Tensor im2col_conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const ConvGeometry& g) {
  return Im2colConv2d::apply(x, weight, bias.defined() ? bias : at::empty({0}, weight.options()), flat(g));
}

Im2colConvolution::Im2colConvolution()
    : library_(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU,
                                                __FILE__, __LINE__)) {
  library_->impl("convolution", convolution_of_any_model);
}

Im2colConvolution::~Im2colConvolution() = default;

}  // namespace starling
