// `starling mcmc` samples a posterior by embarrassingly parallel MCMC (mcmc/sample_posterior.h,
// docs/explanation/mcmc.md).
#pragma once

#include "starling/commands/commands.h"
#include "starling/run/session.h"

namespace starling {

// Runs one rank of the job. Rank 0 prints the result. Returns the exit status.
int run_mcmc(const McmcSpec& what, const CommandOptions& options, Session& session);

// Checks the options before anything is started. Errors: ConfigError.
void check_mcmc_command(const RunSpec& spec, const McmcSpec& what);

}  // namespace starling
