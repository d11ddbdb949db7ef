// `starling lasso` fits a lasso by scheduled updates of weights (lasso/solve_lasso.h,
// docs/explanation/lasso.md).
#pragma once

#include "starling/commands/commands.h"
#include "starling/run/session.h"

namespace starling {

// Runs one rank of the job. Rank 0 prints one line per pass over all features and the result. Returns the
// exit status.
int run_lasso(const LassoSpec& what, const CommandOptions& options, Session& session);

// Checks the options before anything is started. Errors: ConfigError.
void check_lasso_command(const RunSpec& spec, const LassoSpec& what);

}  // namespace starling
