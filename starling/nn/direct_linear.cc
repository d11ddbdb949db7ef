#include "starling/nn/direct_linear.h"

#include <torch/library.h>
#include <torch/torch.h>

#include "starling/nn/gradient_slot.h"

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// place (+)= a, in the shape of place.
void write_product(GradientSlot& slot, const at::Tensor& left, const at::Tensor& right) {
  at::Tensor place = slot.place();
  if (slot.written()) {
    place.addmm_(left, right);
  } else {
    at::mm_out(place, left, right);
  }
  slot.wrote();
}

void write_sum(GradientSlot& slot, const at::Tensor& rows) {
  at::Tensor place = slot.place();
  if (slot.written()) {
    place.add_(rows.sum(0));
  } else {
    at::sum_out(place, rows, 0);
  }
  slot.wrote();
}

// y = x wᵀ + b. x: [..., in], w: [out, in], b: [out], or empty for none (autograd takes no
// undefined tensor here).
struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& b) {
    saved->save_for_backward({x, w});
    saved->saved_data["w_leaf"] = w;
    if (b.numel() > 0) saved->saved_data["b_leaf"] = b;
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor rows = x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
    const at::Tensor y = b.numel() > 0 ? at::addmm(b, rows, w.t()) : at::mm(rows, w.t());
    if (x.dim() == 2) return y;
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = w.size(0);
    return y.view(shape);
  }

  static variable_list backward(AutogradContext* saved, variable_list gradients) {
    const variable_list tensors = saved->get_saved_variables();
    const at::Tensor& x = tensors[0];
    const at::Tensor& w = tensors[1];
    const at::Tensor w_leaf = saved->saved_data["w_leaf"].toTensor();
    at::Tensor b_leaf;
    if (saved->saved_data.count("b_leaf") != 0) b_leaf = saved->saved_data["b_leaf"].toTensor();
    at::NoGradGuard no_grad;
    const at::Tensor dy = gradients[0].dim() == 2 ? gradients[0] : gradients[0].reshape({-1, w.size(0)});
    variable_list result(3);
    if (saved->needs_input_grad(0)) result[0] = at::mm(dy, w).view(x.sizes());
    if (saved->needs_input_grad(1)) {
      const at::Tensor rows = x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
      GradientSlot* slot = GradientSlot::of(w_leaf);
      if (slot != nullptr) {
        write_product(*slot, dy.t(), rows);
      } else {
        result[1] = at::mm(dy.t(), rows);
      }
    }
    if (b_leaf.defined() && saved->needs_input_grad(2)) {
      GradientSlot* slot = GradientSlot::of(b_leaf);
      if (slot != nullptr) {
        write_sum(*slot, dy);
      } else {
        result[2] = dy.sum(0);
      }
    }
    return result;
  }
};

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias) {
  if (!at::GradMode::is_enabled() || x.dim() < 2 || w.dim() != 2 || GradientSlot::of(w) == nullptr) {
    return at::native::linear(x, w, bias);
  }
  const bool with_bias = bias.has_value() && bias->defined();
  return Linear::apply(x, w, with_bias ? *bias : at::empty({0}, w.options()));
}

}  // namespace

DirectLinear::DirectLinear()
    : library_(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU,
                                                __FILE__, __LINE__)) {
  library_->impl("linear", linear);
}

DirectLinear::~DirectLinear() = default;

}  // namespace starling
