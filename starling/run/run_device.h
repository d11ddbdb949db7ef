// The device on which a rank computes (train.device).
#pragma once

#include <c10/core/Device.h>

#include "starling/nn/model.h"
#include "starling/run/run_environment.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the device of a rank. `local_rank` is its number among the ranks of its host, which use the devices
// of the host in turn. Under "auto" that is the CPU if the run cannot use a GPU or the host has none. Errors:
// ConfigError if the host has no usable device of the kind that train.device names.
at::Device run_device(const RunSpec& spec, int local_rank);

// Returns a factory of models that compute on the device of this rank. It is `factory` if that is the CPU.
// Otherwise the rank that leads reports its device to the sink. Errors: those of run_device().
ModelFactory on_run_device(const RunSpec& spec, const RunEnvironment& environment, ModelFactory factory);

}  // namespace starling
