// What train.on_failure comes to.
#pragma once

#include "starling/spec/run_spec.h"

namespace starling {

// Whether parameters are held by server processes: the exchange is parameter-server or downpour.
bool has_servers(const RunSpec& spec);

// Whether each rank holds a whole replica of the model.
bool has_whole_models(const RunSpec& spec);

// Whether the other ranks go on when one is killed. `auto`: where workers of a server do not wait for each other (staleness
// above 0, inf, downpour) and each has a whole model.
bool goes_on_after_loss(const RunSpec& spec);

}  // namespace starling
