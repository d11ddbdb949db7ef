// `starling factorize` factorizes a matrix over ranks (factor/factorize.h,
// docs/explanation/factorization.md).
#pragma once

#include "starling/commands/commands.h"
#include "starling/run/session.h"

namespace starling {

// Runs one rank or one server of the job. Rank 0 prints one line per epoch and the result. Returns the exit
// status.
int factorize(const FactorizeSpec& what, const CommandOptions& options, Session& session);

// Checks the options before anything is started. Errors: ConfigError.
void check_factorize(const RunSpec& spec, const FactorizeSpec& what);

}  // namespace starling
