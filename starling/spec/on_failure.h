// Decides what train.on_failure means for a run.
#pragma once

#include "starling/spec/run_spec.h"

namespace starling {

// Returns true if server processes hold the parameters: the exchange is parameter-server or downpour.
bool has_servers(const RunSpec& spec);

// Returns true if each rank holds a complete replica of the model.
bool has_whole_models(const RunSpec& spec);

// Returns true if the remaining ranks continue after a rank was killed. For kAuto, they continue if each
// worker has a complete model and workers do not wait for each other (downpour, or a staleness above 0).
bool goes_on_after_loss(const RunSpec& spec);

}  // namespace starling
