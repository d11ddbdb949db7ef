// GradientSlot: the place in flat memory where a parameter's gradient belongs. It is a hook behind the parameter's
// AccumulateGrad node: when backward has finished the gradient, the slot takes it and says so. Operations that can write
// their part of the gradient straight into that place (nn/direct_linear.h) find the slot through the parameter itself, so
// nothing global is needed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <memory>

namespace starling {

class GradientSlot final : public torch::autograd::FunctionPostHook {
 public:
  GradientSlot(const at::Tensor& parameter, std::function<void()> on_filled);

  // Installs a slot behind the parameter's AccumulateGrad node, which owns the slot; the node lives as long as the
  // returned handle. on_filled is called on the thread of backward(), once a pass, when the gradient lies in place().
  struct Installed {
    GradientSlot* slot;
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
  };
  static Installed install(const at::Tensor& parameter, std::function<void()> on_filled);

  // The slot installed on `parameter`, null if there is none or it is not a leaf.
  static GradientSlot* of(const at::Tensor& parameter);

  // place: shape and dtype of the parameter; where gradients go from now on.
  void bind(at::Tensor place) { place_ = std::move(place); }
  // For places that exist only while backward fills them: where none is bound, place() first calls make_place, which binds
  // one; unbind() forgets it.
  void bind_when_needed(std::function<void()> make_place) { make_place_ = std::move(make_place); }
  void unbind() { place_.reset(); }
  const at::Tensor& place() {
    if (!place_.defined() && make_place_) make_place_();
    return place_;
  }
  // Begins a pass: nothing written, nothing filled.
  void begin() { written_ = filled_ = false; }
  bool filled() const { return filled_; }

  // For operations that write directly: true if place() already holds a part of this pass's gradient, to which they
  // must add. They call wrote() after writing.
  bool written() const { return written_; }
  void wrote() { written_ = true; }
  // After backward(): a parameter that the loss does not depend on gets a zero gradient.
  void fill_unused();

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override;

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>
      parameter_;  // which owns us, through its node
  at::Tensor place_;
  std::function<void()> make_place_;
  std::function<void()> on_filled_;
  bool written_ = false;
  bool filled_ = false;
};

}  // namespace starling
