#include "starling/parallel/loop_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>

#include "starling/base/error.h"
#include "starling/parallel/loop_strategy.h"

namespace starling {
namespace {

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
}

// Copies a gradient into `to`, which gets memory of its own if it has none.
void copy_gradient(const at::Tensor& from, at::Tensor& to) {
  if (from.is_sparse()) {  // the strategy refuses it by name
    to = from.cpu();
    return;
  }
  if (!to.defined() || to.sizes() != from.sizes()) to = pinned_like(from);
  to.copy_(from, /*non_blocking=*/true);
}

void copy_all(const std::vector<LoopTensor>& tensors, bool to_device) {
  const at::NoGradGuard no_grad;
  for (const LoopTensor& t : tensors)
    to_device ? at::Tensor(t.device).copy_(t.host) : at::Tensor(t.host).copy_(t.device);
}

}  // namespace

std::shared_ptr<LoopDevice> LoopDevice::make(LoopModel& model) {
  const auto all = {&model.parameters, &model.frozen, &model.buffers};
  const NamedTensor* there = nullptr;  // a tensor that is on a device
  for (const auto* tensors : all) {
    for (const NamedTensor& t : *tensors) {
      if (!t.tensor.is_cpu()) there = &t;
    }
  }
  if (there == nullptr) return nullptr;
  const at::Device device = there->tensor.device();
  for (const auto* tensors : all) {
    for (const NamedTensor& t : *tensors) {
      if (t.tensor.device() == device) continue;
      throw ConfigError(
          t.name, fmt::format("is on the device {}, and {} is on {}; move the whole module to one device",
                              t.tensor.device().str(), there->name, device.str()));
    }
  }
  std::shared_ptr<LoopDevice> made(new LoopDevice(device));
  const auto take = [](std::vector<NamedTensor>& tensors, std::vector<LoopTensor>& pairs) {
    for (NamedTensor& t : tensors) {
      at::Tensor host = t.tensor.detach().to(at::kCPU);
      host.set_requires_grad(t.tensor.requires_grad());
      pairs.push_back({t.tensor, host});
      t.tensor = std::move(host);
    }
  };
  take(model.parameters, made->parameters_);
  take(model.frozen, made->frozen_);
  take(model.buffers, made->buffers_);
  return made;
}

void LoopDevice::fetch_gradients() {
  const at::NoGradGuard no_grad;
  for (const LoopTensor& p : parameters_) {
    const at::Tensor& gradient = p.device.grad();
    at::Tensor& copy = p.host.mutable_grad();
    gradient.defined() ? copy_gradient(gradient, copy) : copy.reset();
  }
  // The copies end before the host reads them.
  c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
}

void LoopDevice::fetch_changes() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const at::Tensor& device = parameters_[i].device;
    if (device._version() == seen_[i]) continue;
    at::Tensor(parameters_[i].host).copy_(device);
    seen_[i] = device._version();
  }
}

void LoopDevice::send_gradients() {
  const at::NoGradGuard no_grad;
  for (const LoopTensor& p : parameters_) {
    at::Tensor& gradient = p.device.mutable_grad();
    const at::Tensor& mean = p.host.grad();
    if (!mean.defined()) continue;
    if (!gradient.defined()) gradient = at::empty_like(p.device);  // other ranks have one
    gradient.copy_(mean);
  }
}

void LoopDevice::fetch_buffers() {
  copy_all(buffers_, /*to_device=*/false);
}

void LoopDevice::fetch_frozen() {
  copy_all(frozen_, /*to_device=*/false);
}

void LoopDevice::send() {
  copy_all(parameters_, /*to_device=*/true);
  seen_.clear();
  for (const LoopTensor& p : parameters_) seen_.push_back(p.device._version());
}

void LoopDevice::send_buffers() {
  copy_all(buffers_, /*to_device=*/true);
}

void LoopDevice::send_frozen() {
  copy_all(frozen_, /*to_device=*/true);
}

void LoopDevice::clear_gradients() {
  for (const LoopTensor& p : parameters_) p.device.mutable_grad().reset();
}

}  // namespace starling
