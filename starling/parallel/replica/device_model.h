// Models that compute on a device whose memory the host may not be able to read, such as a GPU.
//
// A strategy exchanges and updates parameters in host memory. on_device() makes models that have two modules.
// The host module is Model::module. Its parameters, gradients and buffers are what strategies, checkpoints
// and files see. The other module computes on the device. It takes the values of the host module before each
// forward pass.
//
//   host parameter → parameter on the device → forward → loss on the device
//   host gradient  ← gradient on the device  ← backward ←
//
// Both copies are nodes of autograd. A gradient therefore reaches the host as soon as backward has computed
// it, and arrives at the host parameter as any other gradient does (nn/layers/gradient_slot.h). The buffers
// are copied to the host after each forward pass in training mode.
//
// Gradients are copied into pinned memory on a stream of their own. Backward continues meanwhile.
#pragma once

#include <c10/core/Device.h>

#include "starling/nn/model.h"

namespace starling {

// Returns a factory of models that compute on `device`. Inputs and targets are copied to the device, and the
// outputs and the loss are there. The models have no blocks, so a strategy cannot divide them. `factory` is
// called twice per model and must make new, equal modules both times. Only libtorch's generic interface to
// devices is used. Errors: ConfigError if the two modules share a tensor or differ in submodules or in the
// names, sizes or types of tensors; c10::Error of the device.
ModelFactory on_device(ModelFactory factory, at::Device device);

}  // namespace starling
