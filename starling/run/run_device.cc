#include "starling/run/run_device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <optional>
#include <string>
#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/cuda_library.h"
#include "starling/parallel/replica/device_model.h"
#include "starling/spec/device_refusal.h"
#include "starling/spec/enum_words.h"

namespace starling {
namespace {

// Returns the number of devices of a type. If there is none, `why` says the reason.
int devices_of(at::DeviceType type, std::string& why) {
  why = type == at::kCUDA ? load_cuda_library() : "the program has registered no device with libtorch";
  if (type == at::kCUDA && why.empty())
    why = "torch finds no CUDA device, or the program asked torch about CUDA before starling::init()";
  if (type == at::kCUDA && !at::hasCUDA()) return 0;
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

// Returns the device of a rank, or why there is none in `why`.
std::optional<at::Device> find_device(at::DeviceType type, int local_rank, std::string& why) {
  const int count = devices_of(type, why);
  if (count == 0) return std::nullopt;
  const at::Device device(type, static_cast<c10::DeviceIndex>(local_rank % count));
  try {
    at::zeros({1}, at::TensorOptions(device)).cpu();  // fails with an old driver, or if the device is in use
  } catch (const c10::Error& error) {
    why = fmt::format("{} cannot be used: {}", device.str(), error.what_without_backtrace());
    return std::nullopt;
  }
  return device;
}

}  // namespace

at::Device run_device(const RunSpec& spec, int local_rank) {
  const DeviceKind kind = spec.train.device;
  std::string why;
  if (kind == DeviceKind::kCpu || (kind == DeviceKind::kAuto && device_refusal(spec))) return at::kCPU;
  const at::DeviceType type = kind == DeviceKind::kOwn ? at::kPrivateUse1 : at::kCUDA;
  if (const auto device = find_device(type, local_rank, why)) return *device;
  if (kind == DeviceKind::kAuto) return at::kCPU;
  throw ConfigError("train.device", fmt::format("\"{}\": {}; use --device cpu", to_string(kind), why));
}

ModelFactory on_run_device(const RunSpec& spec, const RunEnvironment& environment, ModelFactory factory) {
  const at::Device device = run_device(spec, environment.group.local_rank());
  if (device.is_cpu()) return factory;
  if (environment.leads()) {
    environment.process.sink.emit(
        Message{Severity::kInfo, environment.group.rank(),
                fmt::format("rank {} computes on {} (experimental); parameters are updated in host memory",
                            environment.group.rank(), device.str())});
  }
  return on_device(std::move(factory), device);
}

}  // namespace starling
