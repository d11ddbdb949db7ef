// The C function of the plug-in (starling/c10d/device_backends.h), which makes torch's ProcessGroupNCCL.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <exception>
#include <string>

#include "starling/c10d/device_backends.h"

extern "C" bool starling_make_nccl(const starling::DeviceRequest* request,
                                   c10::intrusive_ptr<c10d::Backend>* made, std::string* error) {
  if (request->abi != starling::kNcclPluginAbi) {
    *error = "the plug-in is of another build of Starling; build both together";
    return false;
  }
  try {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = request->timeout;
    options->group_name = request->name;
    options->global_ranks_in_group.assign(request->world_ranks.begin(), request->world_ranks.end());
    *made =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(request->store, request->rank, request->size, options);
    return true;
  } catch (const c10::Error& failure) {
    *error = failure.what_without_backtrace();
  } catch (const std::exception& failure) {
    *error = failure.what();
  }
  return false;
}
