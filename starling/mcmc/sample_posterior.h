// Embarrassingly parallel MCMC (Neiswanger, Wang and Xing, "Asymptotically exact, embarrassingly parallel
// MCMC", UAI 2014). docs/explanation/mcmc.md describes it.
//
// The samples are divided among M sub-posteriors (posterior.h), and each rank samples its own. No rank sends
// a byte while it samples. Then rank 0 receives the draws and combines them (combine.h).
//
// The draws depend on the posterior, the options and M. For an equal M, they do not depend on the number of
// ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/mcmc/chain.h"
#include "starling/mcmc/combine.h"
#include "starling/mcmc/draws.h"
#include "starling/mcmc/posterior.h"

namespace starling {

// What sample_posterior() does.
struct McmcOptions {
  int sub_posteriors = 0;  // M, at least one per rank; 0: one per rank
  int64_t draws = 2000;    // T, of each sub-posterior, at least 4
  ChainOptions chain;      // how the sub-posteriors are sampled
  // The estimator of the posterior (combine.h).
  Combination combination = Combination::kParametric;
  uint64_t seed = 0;  // of all random numbers
  // A folder for checkpoints, with one folder in it for each sub-posterior. Empty: none. A run whose folder
  // has checkpoints goes on from them, with any number of ranks and an equal M. Ranks of several hosts must
  // share the folder.
  std::string checkpoint;
  int64_t checkpoint_every = 1000;  // transitions; 0: at the end only
};

// The environment of a rank's work. All references must outlive the call.
struct McmcParts {
  Group& group;                // all ranks that sample
  const Posterior& posterior;  // equal on all ranks, apart from samples that a rank does not ask for
  const Clock& clock;          // for the seconds of the result
  // Set on a rank: it writes its checkpoints and samples no more. May be null.
  const std::atomic<bool>* stop = nullptr;
  // Receives the number of transitions that this rank has made, after each of them. May be empty.
  std::function<void(int64_t)> on_transition = {};
};

// What one sub-posterior has given. Members are set on rank 0 only.
struct SubPosteriorResult {
  PosteriorDraws draws;       // T draws
  ChainReport chain;          // what the chain has done
  double largest_r_hat = 0;   // over the parameters (diagnostics.h)
  double smallest_size = 0;   // of the effective sample sizes of the parameters
  int64_t resumed_from = -1;  // the transitions of its checkpoint; -1: it had none
  double seconds = 0;         // of its sampling, in this process
};

// The payload that all ranks have sent.
struct McmcBytes {
  uint64_t start = 0;      // comparisons of the ranks' settings
  uint64_t sampling = 0;   // 0
  uint64_t gathering = 0;  // the draws, and the messages that sampling has ended
};

// What sample_posterior() returns. Members are set on rank 0 only, unless they say otherwise.
struct McmcResult {
  bool interrupted = false;  // on all ranks: McmcParts::stop was set somewhere; `combined` is empty then
  CombinedDraws combined;    // the estimate of the posterior
  std::vector<SubPosteriorResult> sub_posteriors;  // empty after an interruption
  McmcBytes bytes;                                 // that all ranks have sent
  double sampling_s = 0;                           // of the slowest rank
};

// Samples and combines. Collective.
// Errors: ConfigError from check_mcmc(), if ranks have different options or posteriors, or if the numbers of
// parameters or samples or the length of start() are wrong.
// Error(kNumeric) if a density is NaN or 0 at its start, or if the draws determine no covariance.
// Error(kCheckpoint). CommError.
McmcResult sample_posterior(const McmcOptions& options, const McmcParts& parts);

// Returns M.
int sub_posteriors_of(const McmcOptions& options, int ranks);
// Throws ConfigError if an option is out of range for a number of ranks.
void check_mcmc(const McmcOptions& options, int ranks);

}  // namespace starling
