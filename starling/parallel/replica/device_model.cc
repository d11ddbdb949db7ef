#include "starling/parallel/replica/device_model.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The copy of one gradient from a device to the host. The thread of the device's backward begins the copy,
// and the thread that fills host gradients ends it.
class GradientCopy final : public torch::CustomClassHolder {
 public:
  // The copy runs on `stream`.
  explicit GradientCopy(c10::Stream stream) : stream_(stream), done_(stream.device_type()) {}

  // Returns host memory that holds the gradient after finish().
  at::Tensor begin(const at::Tensor& gradient) {
    const c10::Device device = gradient.device();
    c10::Event ready(device.type());
    ready.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    ready.block(stream_);
    source_ = gradient;  // its memory must not be used anew before the copy is done
    const at::Tensor host = at::empty_like(gradient, gradient.options().device(at::kCPU).pinned_memory(true));
    const c10::StreamGuard on_stream(stream_);
    host.copy_(gradient, /*non_blocking=*/true);
    done_.record(stream_);
    return host;
  }

  // Waits until the copy is done.
  void finish() {
    if (!source_.defined()) return;
    done_.synchronize();
    source_.reset();
  }

 private:
  const c10::Stream stream_;
  c10::Event done_;
  at::Tensor source_;
};

using SharedCopy = c10::intrusive_ptr<GradientCopy>;

SharedCopy copy_of(AutogradContext* saved) {
  return c10::static_intrusive_pointer_cast<GradientCopy>(saved->saved_data["copy"].toCapsule());
}

// Forward is the identity on the host. Backward waits for the gradient's copy, on the thread of the host.
struct WaitForGradient : torch::autograd::Function<WaitForGradient> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& host, const SharedCopy& copy) {
    saved->saved_data["copy"] = c10::IValue::make_capsule(copy);
    return host;
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    copy_of(saved)->finish();
    return {gradients[0], at::Tensor()};
  }
};

// Forward copies a parameter to the device. Backward begins the copy of its gradient to the host.
struct CopyToDevice : torch::autograd::Function<CopyToDevice> {
  static at::Tensor forward(AutogradContext* saved, const at::Tensor& host, c10::Device device,
                            const SharedCopy& copy) {
    saved->saved_data["copy"] = c10::IValue::make_capsule(copy);
    return host.to(device);
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    const at::NoGradGuard no_grad;
    at::Tensor host;
    if (gradients[0].defined()) host = copy_of(saved)->begin(gradients[0]);
    return {host, at::Tensor(), at::Tensor()};
  }
};

// A tensor of the host module and its counterpart of the module on the device.
struct TensorPair {
  at::Tensor host, device;
};

// Makes `tensor` show the memory of `value`. set_data() does the same, but refuses devices that libtorch does
// not know.
void show(const at::Tensor& tensor, const at::Tensor& value) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());
}

// The model on the device. Not thread-safe.
class DeviceModel {
 public:
  DeviceModel(std::shared_ptr<torch::nn::Module> host, Model model, at::Device device)
      : host_(std::move(host)),
        model_(std::move(model)),
        device_(device),
        gradients_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {
    pair_parameters();
    pair_buffers();
    hosts_ = host_->modules();
    modules_ = model_.module->modules();
    if (modules_.size() != hosts_.size()) refuse("makes other submodules of", model_.module->name());
  }

  Tensors forward(const Tensors& inputs) {
    const c10::DeviceGuard guard(device_);
    follow_mode();
    for (const TensorPair& p : parameters_) copy_parameter(p);
    {
      const at::NoGradGuard no_grad;
      for (const TensorPair& b : buffers_) show(b.device, b.host.to(device_));
    }
    Tensors outputs = model_.forward(on_device(inputs));
    if (host_->is_training()) fetch_buffers();
    return outputs;
  }

  WeightedLoss loss(const Tensors& outputs, const Tensors& targets) const {
    const c10::DeviceGuard guard(device_);
    return model_.loss.of(outputs, on_device(targets));
  }

 private:
  void pair_parameters() {
    const auto there = model_.module->named_parameters();
    for (const auto& item : host_->named_parameters()) {
      at::Tensor device = counterpart(there.find(item.key()), item.value(), item.key());
      device.set_requires_grad(false);  // a gradient flows to the host parameter only
      parameters_.push_back({item.value(), std::move(device)});
    }
  }

  void pair_buffers() {
    const auto there = model_.module->named_buffers();
    for (const auto& item : host_->named_buffers()) {
      if (!item.value().defined()) continue;
      buffers_.push_back({item.value(), counterpart(there.find(item.key()), item.value(), item.key())});
    }
  }

  static at::Tensor counterpart(const at::Tensor* found, const at::Tensor& host, const std::string& name) {
    if (found == nullptr) refuse("makes no tensor", name);
    if (found->is_same(host) || (host.numel() > 0 && found->is_alias_of(host)))
      refuse("returns the same tensor", name);
    if (found->sizes() != host.sizes() || found->scalar_type() != host.scalar_type())
      refuse("makes another tensor", name);
    return *found;
  }

  [[noreturn]] static void refuse(const char* what, const std::string& name) {
    throw ConfigError("train.device",
                      fmt::format("a model on a device is made twice, and the factory {} \"{}\" the second "
                                  "time; make new, equal modules at every call, or use --device cpu",
                                  what, name));
  }

  // The trainer sets the mode of the host module only.
  void follow_mode() const {
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (modules_[i]->is_training() != hosts_[i]->is_training())
        modules_[i]->train(hosts_[i]->is_training());
    }
  }

  void copy_parameter(const TensorPair& p) const {
    if (!p.host.requires_grad() || !at::GradMode::is_enabled()) {
      const at::NoGradGuard no_grad;
      show(p.device, p.host.to(device_));
      torch::autograd::impl::set_gradient_edge(p.device, {});
      return;
    }
    const auto copy = c10::make_intrusive<GradientCopy>(gradients_);
    const at::Tensor value = CopyToDevice::apply(WaitForGradient::apply(p.host, copy), device_, copy);
    show(p.device, value);
    torch::autograd::impl::set_gradient_edge(p.device, torch::autograd::impl::gradient_edge(value));
  }

  void fetch_buffers() const {
    const at::NoGradGuard no_grad;
    for (const TensorPair& b : buffers_) at::Tensor(b.host).copy_(b.device);
  }

  Tensors on_device(Tensors tensors) const {
    for (at::Tensor& tensor : tensors) {
      if (tensor.defined()) tensor = tensor.to(device_);
    }
    return tensors;
  }

  const std::shared_ptr<torch::nn::Module> host_;
  const Model model_;
  const at::Device device_;
  const c10::Stream gradients_;  // copies gradients to the host
  std::vector<TensorPair> parameters_, buffers_;
  std::vector<std::shared_ptr<torch::nn::Module>> hosts_, modules_;  // with all modules in them, in one order
};

}  // namespace

ModelFactory on_device(ModelFactory factory, at::Device device) {
  return [factory = std::move(factory), device] {
    Model made = factory();
    Model second = factory();
    made.samples = second.samples;
    made.carried = second.carried;
    made.blocks.clear();
    const auto computing = std::make_shared<DeviceModel>(made.module, std::move(second), device);
    made.forward = [computing](const Tensors& inputs) { return computing->forward(inputs); };
    made.loss = ModelLoss([computing](const Tensors& outputs,
                                      const Tensors& targets) { return computing->loss(outputs, targets); },
                          made.loss.weighted());
    return made;
  };
}

}  // namespace starling
