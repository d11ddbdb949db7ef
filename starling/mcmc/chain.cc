#include "starling/mcmc/chain.h"

#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/mcmc/hmc.h"
#include "starling/mcmc/random_walk.h"

namespace starling {

std::unique_ptr<Chain> make_chain(const ChainOptions& options, SubPosterior& density,
                                  std::vector<double> start, uint64_t key) {
  if (start.size() != density.dimensions())
    throw ConfigError("Posterior::start",
                      fmt::format("has {} numbers for {} parameters; return one per parameter", start.size(),
                                  density.dimensions()));
  if (options.sampler == Sampler::kRandomWalk)
    return std::make_unique<RandomWalkChain>(options, density, std::move(start), key);
  return std::make_unique<HmcChain>(options, density, std::move(start), key);
}

void check_chain(const ChainOptions& options) {
  if (options.warmup < 0)
    throw ConfigError("--warmup", fmt::format("{} transitions; use 0 or more", options.warmup));
  if (!(options.target_acceptance > 0 && options.target_acceptance < 1))
    throw ConfigError("--target-acceptance",
                      fmt::format("{} is no probability of acceptance; use one between 0 and 1",
                                  options.target_acceptance));
  if (!(options.length > 0 && options.length < 1e6))
    throw ConfigError("ChainOptions::length",
                      fmt::format("{} is no length of a trajectory; use a positive number", options.length));
  if (options.most_steps < 1)
    throw ConfigError("ChainOptions::most_steps",
                      fmt::format("{} leapfrog steps; use at least 1", options.most_steps));
}

}  // namespace starling
