#include "starling/nn/layers/gradient_slot.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <utility>

namespace starling {

GradientSlot::GradientSlot(const at::Tensor& parameter, std::function<void()> on_filled)
    : parameter_(parameter.getIntrusivePtr()), on_filled_(std::move(on_filled)) {}

GradientSlot::Installed GradientSlot::install(const at::Tensor& parameter, std::function<void()> on_filled) {
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  auto hook = std::make_unique<GradientSlot>(parameter, std::move(on_filled));
  GradientSlot* slot = hook.get();
  accumulator->add_post_hook(std::move(hook));
  return {slot, std::move(accumulator)};
}

GradientSlot* GradientSlot::of(const at::Tensor& parameter) {
  if (!parameter.requires_grad() || !parameter.is_leaf()) return nullptr;
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!node) return nullptr;
  for (const auto& hook : node->post_hooks()) {
    if (auto* slot = dynamic_cast<GradientSlot*>(hook.get())) return slot;
  }
  return nullptr;
}

void GradientSlot::fill_unused() {
  if (filled_) return;
  if (!written_) place().zero_();
  filled_ = true;
  on_filled_();
}

torch::autograd::variable_list GradientSlot::operator()(const torch::autograd::variable_list& outputs,
                                                        const torch::autograd::variable_list& inputs) {
  at::NoGradGuard no_grad;
  if (!inputs.empty() && inputs[0].defined()) {
    // inputs[0] is the part that was not written straight into place(). AccumulateGrad has also stored it in
    // the parameter's .grad, by stealing the buffer and not by a copy. That .grad is dropped here.
    if (inputs[0].is_sparse() && !written_) place().zero_();  // copy_() takes no sparse tensor
    if (written_ || inputs[0].is_sparse()) {
      place().add_(inputs[0]);
    } else {
      place().copy_(inputs[0]);
    }
    if (auto impl = parameter_.lock()) at::Tensor(std::move(impl)).mutable_grad().reset();
  } else if (!written_) {
    place().zero_();
  }
  written_ = true;
  if (more_) return outputs;
  filled_ = true;
  on_filled_();
  return outputs;
}

}  // namespace starling
