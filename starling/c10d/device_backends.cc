#include "starling/c10d/device_backends.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/base/shared_object.h"
#include "starling/c10d/cuda_library.h"

namespace starling {

std::vector<DeviceBackend> device_backends() {
  load_cuda_library();  // if it is impossible, torch sees no GPU
  if (!at::globalContext().hasCUDA() || at::detail::getCUDAHooks().deviceCount() <= 0) return {};
  return {{c10::DeviceType::CUDA, c10d::ProcessGroup::NCCL, make_nccl_backend}};
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const DeviceRequest& request) {
  using Make = bool (*)(const DeviceRequest*, c10::intrusive_ptr<c10d::Backend>*, std::string*);
  const SharedObject plugin("starling_nccl", "NCCL",
                            "build Starling against a torch with NCCL's headers beside it "
                            "(docs/explanation/communication.md, GPUs), or make the "
                            "process group without other devices: CPU tensors need none of it");
  c10::intrusive_ptr<c10d::Backend> made;
  std::string error;
  if (reinterpret_cast<Make>(plugin.find(kMakeNcclName))(&request, &made, &error)) return made;
  throw Error(
      ErrorCode::kConfig,
      fmt::format("NCCL: {}; run where torch finds a GPU and its driver, or give CPU tensors", error));
}

}  // namespace starling
