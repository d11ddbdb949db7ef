// What a run can do when a rank is lost or a signal interrupts it, by its strategy.
#pragma once

#include "starling/spec/run_spec.h"

namespace starling {

// Returns true if server processes hold the parameters, as with parameter-server, downpour and async-easgd.
bool has_servers(const RunSpec& spec);

// Returns true if each rank holds a complete replica of the model.
bool has_whole_models(const RunSpec& spec);

// Returns true if each rank evaluates its samples alone, without waiting for other ranks.
bool evaluates_alone(const RunSpec& spec);

// Returns true if a rank can ask all ranks to write a checkpoint after the next step (SIGUSR1 and
// checkpoint.minutes). Backup workers, and workers that pull less often than every step, learn of a request
// too late.
bool saves_on_request(const RunSpec& spec);

// Returns true if the remaining ranks continue after a rank was killed. For kAuto, they continue if each
// worker has a complete model and workers do not wait for each other (downpour, async-easgd, or a staleness
// above 0).
bool goes_on_after_loss(const RunSpec& spec);

}  // namespace starling
