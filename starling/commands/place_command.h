// `starling place` finds a device for each group of operations of a model (place/graph.h, place_policy.h,
// docs/explanation/placement.md).
#pragma once

#include <string>

#include "starling/commands/commands.h"
#include "starling/run/session.h"

namespace starling {

// Runs one rank of the job. Rank 0 prints the placements that each method finds, and the measurements.
// Returns the exit status.
int run_place(const PlaceSpec& what, const CommandOptions& options, Session& session);

// Checks the options before anything is started. Only rank 0 of a job reads a file, because other hosts may
// not have it. Errors: ConfigError.
void check_place(const RunSpec& spec, const PlaceSpec& what);

// Returns what a dry run says, with the devices of the file if it names them. Errors: those of check_place().
std::string place_dry_run(const RunSpec& spec, const PlaceSpec& what);

}  // namespace starling
