// The event that a run begins, from what the run knows before its first step.
#pragma once

#include <cstdint>

#include "starling/data/source.h"
#include "starling/run/choice/choices.h"
#include "starling/run/run_environment.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/event.h"
#include "starling/train/trainer.h"

namespace starling {

// Returns the event of a run that begins, or goes on, after step length.first_step. `parameters` is their
// number in the whole model. startup_s is unset.
RunStarted run_started(const RunSpec& spec, const Source& data, const TrainLength& length,
                       const Choices& choices, const RunEnvironment& environment, int64_t parameters);

}  // namespace starling
