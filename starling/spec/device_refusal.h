// Which runs can compute on a device other than the CPU (train.device).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "starling/spec/run_spec.h"

namespace starling {

// Why a run cannot compute on a device.
struct DeviceRefusal {
  std::string_view key;  // the setting that needs the CPU
  std::string text;      // what the setting does, and what to write instead
};

// Returns the first reason why a run with these settings cannot compute on a device, whatever train.device
// is. Nothing if it can. Each rank of a run on a device computes with a whole model.
std::optional<DeviceRefusal> device_refusal(const RunSpec& spec);

// Returns device_refusal(), with the device in the text, if train.device asks for a device. Nothing for
// "cpu", and nothing for "auto", which takes the CPU for a run that needs it.
std::optional<DeviceRefusal> refused_device(const RunSpec& spec);

}  // namespace starling
