// The backends of a process group for the devices that Starling's own does not serve: tensors of a GPU go to torch's
// ProcessGroupNCCL, whatever the training code is.
//
// ProcessGroupNCCL is a part of libtorch_cuda, which with NCCL and CUDA is 3 GB that a program without a GPU does not need. What makes
// one is therefore a plug-in (plugins/nccl), built where NCCL's headers are, and loaded when a process group is made in a process that
// has a GPU. NCCL itself connects at the first operation on tensors of a GPU.
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

// Raised with every change of DeviceRequest and of the plug-in's function.
constexpr uint32_t kNcclPluginAbi = 1;
// extern "C" bool starling_make_nccl(const starling::DeviceRequest* request, c10::intrusive_ptr<c10d::Backend>* made,
//                                    std::string* error);
// False where it cannot: `error` says why. Nothing is thrown.
constexpr const char* kMakeNcclName = "starling_make_nccl";

// What such a backend is made of.
struct DeviceRequest {
  uint32_t abi = kNcclPluginAbi;          // refused where it is another
  c10::intrusive_ptr<c10d::Store> store;  // whose keys are this backend's alone
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{60'000};
  std::string name;                  // of the group
  std::vector<int64_t> world_ranks;  // of its ranks in the job; empty: they are equal
};

struct DeviceBackend {
  c10::DeviceType device;
  c10d::ProcessGroup::BackendType type;  // a process group has one backend of each type
  std::function<c10::intrusive_ptr<c10d::Backend>(const DeviceRequest&)> make;
};

// NCCL for CUDA where torch sees a GPU: libtorch_cuda is in this process, and a driver with a device. Else none.
std::vector<DeviceBackend> device_backends();

// Loads the plug-in. ConfigError where it cannot be loaded, Error(kConfig) where there is no GPU; both say what to do.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const DeviceRequest& request);

}  // namespace starling
