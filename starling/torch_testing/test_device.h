// A device for tests: a second kind of memory and streams inside the process, registered with libtorch as
// "starling_test" (c10::DeviceType::PrivateUse1). It finds code that treats memory of a device as host
// memory.
//
// - The host cannot access the memory of the device: an access ends the process by SIGSEGV. Only kernels and
//   copies can. Fresh memory holds NaN.
// - Streams are lazy. A copy or the result of a kernel takes effect when a thread waits for it. The thread
//   waits for the stream, for an event behind the work, or in a blocking copy to the host. So a missing wait
//   gives stale or NaN values in every run, and not in a few of them.
// - A kernel computes with what its own stream has written. It sees what another stream writes only if an
//   event orders the streams.
//
// Kernels are those of the CPU, on copies of their arguments. The device is no model of the speed of a GPU.
// It stays registered until the process ends.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace starling {

// The number of test devices in a process.
inline constexpr int kTestDevices = 2;

// Registers the device with libtorch at the first call. Call it before the first backward pass of the
// process, which counts the devices. Returns device `index`.
at::Device test_device(int index = 0);

// Returns the number of copies and results for which no thread has waited.
size_t unfinished_work_of_test_devices();

}  // namespace starling
