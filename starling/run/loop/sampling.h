// Samples a posterior of a program's own with the ranks of a run.
//
//   int main(int argc, char** argv) {
//     starling::Run run = starling::init(argc, argv);
//     const Coin posterior;
//     const auto result = starling::sample_posterior(run, posterior, {.draws = 4000});
//     if (run.rank() == 0) print(result.combined.moments);
//   }
#pragma once

#include "starling/mcmc/posterior.h"
#include "starling/mcmc/sample_posterior.h"
#include "starling/run/run.h"

namespace starling {

// Samples the posterior by embarrassingly parallel MCMC (mcmc/sample_posterior.h). The ranks of the run share
// the sub-posteriors. The draws and their moments are on rank 0. Collective. With --dry-run, one rank
// samples, and it neither reads nor writes checkpoints.
//
// Errors: a fault ends the process, or is thrown, as a fault of fit() does. A run that SIGTERM or Ctrl-C
// interrupts writes its checkpoints (McmcOptions::checkpoint) and ends the process with status 128 + signal.
// After throw_faults() the function returns the result instead, and McmcResult::interrupted is true.
McmcResult sample_posterior(Run& run, const Posterior& posterior, const McmcOptions& options = {});

}  // namespace starling
