#include "starling/nn/layers/direct_linear.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "starling/nn/layers/gradient_slot.h"
#include "starling/nn/layers/weight_exchange.h"

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Writes left · right into the slot's place, or adds it if the place already holds a part of the gradient.
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

// y = x W + b with W = wᵀ, or W = w if in_out. An empty `b` means no bias, because autograd takes no
// undefined tensor here.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& b, bool in_out) {
    saved->save_for_backward({x, w});
    saved->saved_data["w_leaf"] = w;
    saved->saved_data["in_out"] = in_out;
    if (b.numel() > 0) saved->saved_data["b_leaf"] = b;
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor rows = rows_of(x), factor = in_out ? w : w.t();
    const at::Tensor y = b.numel() > 0 ? at::addmm(b, rows, factor) : at::mm(rows, factor);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = factor.size(1);
    return x.dim() == 2 ? y : y.view(shape);
  }

  static variable_list backward(AutogradContext* saved, variable_list gradients) {
    const variable_list tensors = saved->get_saved_variables();
    const at::Tensor &x = tensors[0], &w = tensors[1];
    const bool in_out = saved->saved_data["in_out"].toBool();
    at::NoGradGuard no_grad;
    const at::Tensor dy = rows_of(gradients[0]);
    variable_list result(4);
    if (saved->needs_input_grad(0)) result[0] = at::mm(dy, in_out ? w.t() : w).view(x.sizes());
    if (saved->needs_input_grad(1)) {
      const at::Tensor rows = rows_of(x);
      const at::Tensor left = in_out ? rows.t() : dy.t(), right = in_out ? dy : rows;
      GradientSlot* slot = GradientSlot::of(saved->saved_data["w_leaf"].toTensor());
      slot != nullptr ? write_product(*slot, left, right) : void(result[1] = at::mm(left, right));
    }
    if (saved->saved_data.count("b_leaf") != 0 && saved->needs_input_grad(2)) {
      GradientSlot* slot = GradientSlot::of(saved->saved_data["b_leaf"].toTensor());
      slot != nullptr ? write_sum(*slot, dy) : void(result[2] = dy.sum(0));
    }
    return result;
  }

 private:
  static at::Tensor rows_of(const at::Tensor& t) { return t.dim() == 2 ? t : t.reshape({-1, t.size(-1)}); }
};

at::Tensor linear_of_any_model(const at::Tensor& x, const at::Tensor& w,
                               const std::optional<at::Tensor>& bias) {
  // The layer of such a weight has no bias, so that ATen calls at::matmul, where PlainLinears finds the
  // exchange.
  if (!has_direct_place(x, w) || WeightExchange::of(w) != nullptr) return at::native::linear(x, w, bias);
  return direct_linear(x, w, bias.value_or(at::Tensor()), false);
}

}  // namespace

bool has_direct_place(const at::Tensor& x, const at::Tensor& weight) {
  return at::GradMode::is_enabled() && x.dim() >= 2 && weight.dim() == 2 &&
         GradientSlot::of(weight) != nullptr;
}

at::Tensor direct_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool in_out) {
  return LinearFunction::apply(x, weight, bias.defined() ? bias : at::empty({0}, weight.options()), in_out);
}

DirectLinear::DirectLinear()
    : library_(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU,
                                                __FILE__, __LINE__)) {
  library_->impl("linear", linear_of_any_model);
}

DirectLinear::~DirectLinear() = default;

}  // namespace starling
