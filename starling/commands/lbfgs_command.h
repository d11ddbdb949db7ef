// `starling lbfgs` fits a ridge logistic regression by Sandblaster L-BFGS (lbfgs/solve.h,
// docs/explanation/sandblaster.md).
#pragma once

#include "starling/commands/commands.h"
#include "starling/run/session.h"

namespace starling {

// Runs one rank of the job. Rank 0 prints one line per iteration and the result. Returns the exit status.
int run_lbfgs(const LbfgsSpec& what, const CommandOptions& options, Session& session);

// Checks the options before anything is started. Errors: ConfigError.
void check_lbfgs_command(const RunSpec& spec, const LbfgsSpec& what);

}  // namespace starling
