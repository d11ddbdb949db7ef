// GradientSlot is the place in flat memory where a parameter's gradient belongs. The slot is a hook behind
// the parameter's AccumulateGrad node. When backward has finished the gradient, the slot stores it and
// reports it. Operations that can write the gradient straight into that place (nn/layers/direct_linear.h)
// find the slot through the parameter, so no global state is needed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <memory>

namespace starling {

// A hook that moves one parameter's gradient into flat memory. Not thread-safe: the thread of backward() uses
// it.
class GradientSlot final : public torch::autograd::FunctionPostHook {
 public:
  // Use install() instead.
  GradientSlot(const at::Tensor& parameter, std::function<void()> on_filled);

  // What install() returns. The node owns the slot and lives as long as `accumulator`.
  struct Installed {
    GradientSlot* slot;
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
  };
  // Installs a slot behind the parameter's AccumulateGrad node. The slot calls on_filled once per pass, when
  // the gradient lies in place(). The thread of backward() makes this call, or the thread of fill_unused().
  static Installed install(const at::Tensor& parameter, std::function<void()> on_filled);

  // Returns the slot of `parameter`. Returns null if the parameter has no slot or is not a leaf.
  static GradientSlot* of(const at::Tensor& parameter);

  // Sets where gradients go from now on. `place` has the shape and dtype of the parameter.
  void bind(at::Tensor place) { place_ = std::move(place); }
  // Sets a function for places that exist only while backward fills them. If no place is bound, place() first
  // calls make_place, which must bind one.
  void bind_when_needed(std::function<void()> make_place) { make_place_ = std::move(make_place); }
  // Forgets the place.
  void unbind() { place_.reset(); }
  // Returns the place of the gradient. Undefined if none is bound and bind_when_needed() was not called.
  const at::Tensor& place() {
    if (!place_.defined() && make_place_) make_place_();
    return place_;
  }
  // Begins a pass: nothing is written and nothing is filled yet.
  void begin() { written_ = filled_ = false; }
  // Sets whether the pass has further calls of backward() after the next one. If it does, their gradients are
  // added, and the next call does not complete the gradient.
  void expect_more(bool more) { more_ = more; }
  // Multiplies what backward has stored in this pass so far.
  void scale(double factor) {
    if (written_) place().mul_(factor);
  }
  // True if this pass's gradient is complete in place().
  bool filled() const { return filled_; }

  // For operations that write directly. Returns true if place() already holds a part of this pass's gradient,
  // to which the operation must add. The operation calls wrote() after writing.
  bool written() const { return written_; }
  // Records that an operation wrote into place().
  void wrote() { written_ = true; }
  // Call after backward(). If the loss does not depend on the parameter, this sets its gradient to zero and
  // reports it as filled.
  void fill_unused();

  // Called by autograd after AccumulateGrad.
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override;

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>
      parameter_;  // weak, because the parameter owns this slot through its node
  at::Tensor place_;
  std::function<void()> make_place_;
  std::function<void()> on_filled_;
  bool written_ = false;
  bool filled_ = false;
  bool more_ = false;
};

}  // namespace starling
