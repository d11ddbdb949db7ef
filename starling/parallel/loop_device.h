// LoopDevice lets a strategy train a module of a user's own loop that computes on a device, such as a GPU.
//
// The strategy exchanges and updates copies in host memory. Each step moves the gradients to the host. It
// then moves the parameters back.
//
//   gradient on the device → its copy → exchange and update → parameter of the host → parameter on the device
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace starling {

struct LoopModel;

// A tensor of the module, and its copy in host memory.
struct LoopTensor {
  at::Tensor device, host;
};

// Not thread-safe: the thread that trains makes all calls. Errors: those of the device (c10::Error).
class LoopDevice {
 public:
  // Replaces the tensors of `model` by copies in host memory. Returns null, and replaces nothing, if all
  // tensors are in host memory. Errors: ConfigError if the tensors are on several devices.
  static std::shared_ptr<LoopDevice> make(LoopModel& model);

  // The device of the module.
  at::Device device() const { return device_; }
  // The parameters that the optimizer updates.
  const std::vector<LoopTensor>& parameters() const { return parameters_; }
  // The parameters that the optimizer does not update.
  const std::vector<LoopTensor>& frozen() const { return frozen_; }

  // Copies the gradients to the host. A gradient that is undefined on the device becomes undefined on the
  // host.
  void fetch_gradients();
  // Copies those parameters to the host that the program has changed since send(). libtorch counts the
  // changes of a tensor. It does not count those through Tensor::data().
  void fetch_changes();
  // Copies the buffers to the host.
  void fetch_buffers();
  // Copies frozen() to the host, in case another optimizer updates these parameters.
  void fetch_frozen();
  // Copies the gradients to the device.
  void send_gradients();
  // Copies the parameters that the optimizer updates to the device.
  void send();
  // Copies the buffers to the device.
  void send_buffers();
  // Copies frozen() to the device.
  void send_frozen();
  // Makes the gradients on the device undefined.
  void clear_gradients();

 private:
  explicit LoopDevice(at::Device device) : device_(device) {}

  const at::Device device_;
  std::vector<LoopTensor> parameters_, frozen_, buffers_;
  std::vector<uint32_t> seen_;  // by parameter: the number of its changes when both were equal
};

}  // namespace starling
