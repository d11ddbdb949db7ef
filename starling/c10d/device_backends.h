// The backends of a process group for devices that StarlingBackend does not serve. Tensors of a GPU go to
// torch's ProcessGroupNCCL, whatever the training code is.
//
// ProcessGroupNCCL is a part of libtorch_cuda. This library needs NCCL and CUDA and is large, and a program
// without a GPU does not need it. A plug-in (plugins/nccl) therefore makes the backend. It is built if torch
// has libtorch_cuda and the headers of NCCL and CUDA are installed. It is loaded when a process that has a
// GPU makes a process group. NCCL itself connects at the first operation on tensors of a GPU.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace starling {

// The version of DeviceRequest and of the plug-in's function. It grows with every change of these.
constexpr uint32_t kNcclPluginAbi = 1;
// The name of the plug-in's function, which throws nothing. It returns false if it cannot make the backend,
// and `error` says why.
//
//   extern "C" bool starling_make_nccl(const starling::DeviceRequest* request,
//                                      c10::intrusive_ptr<c10d::Backend>* made, std::string* error);
constexpr const char* kMakeNcclName = "starling_make_nccl";

// What a backend is made from.
struct DeviceRequest {
  uint32_t abi = kNcclPluginAbi;          // the plug-in refuses another version
  c10::intrusive_ptr<c10d::Store> store;  // its keys belong to this backend alone
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{60'000};
  std::string name;                  // of the group
  std::vector<int64_t> world_ranks;  // as RendezvousOptions::world_ranks
};

// The backend of one device.
struct DeviceBackend {
  c10::DeviceType device;
  c10d::ProcessGroup::BackendType type;  // a process group has one backend of each type
  std::function<c10::intrusive_ptr<c10d::Backend>(const DeviceRequest&)> make;
};

// Returns NCCL for CUDA if torch sees a GPU: the host has a driver and a device, and libtorch_cuda can be
// loaded (cuda_library.h). Otherwise returns an empty list.
std::vector<DeviceBackend> device_backends();

// Loads the plug-in and makes the backend. Errors: ConfigError if the plug-in cannot be loaded;
// Error(kConfig) if it cannot make the backend, for example because there is no GPU. Both messages say what
// to do.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const DeviceRequest& request);

}  // namespace starling
