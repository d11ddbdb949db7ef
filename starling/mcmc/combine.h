// Combines the draws of sub-posteriors into draws of the posterior (Neiswanger, Wang and Xing,
// "Asymptotically exact, embarrassingly parallel MCMC", UAI 2014, section 3).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/mcmc/draws.h"

namespace starling {

// The estimators of the posterior.
enum class Combination {
  kParametric,  // the product of normal densities (product.h)
  // The product of kernel estimates: a mixture of T^M normal densities (component_walk.h).
  kNonparametric,
  // Each sub-posterior is a normal density times a correction by kernels. The mixture has weights W.
  kSemiparametric,
  // The same components, with the weights w of the nonparametric mixture.
  kSemiparametricKernelWeights,
  kAverage,  // the mean of the draws with equal numbers. A baseline that is exact for equal normal densities
  kPool,     // the draws of all sub-posteriors. A baseline, which estimates no posterior
};

// A name of a combination in options and messages.
struct CombinationName {
  Combination combination;  // the estimator
  const char* name;         // its name
};
// Returns all combinations, in the order of the enumeration.
std::span<const CombinationName> combination_names();
// Returns the name of a combination.
const char* name_of(Combination combination);
// Returns the combination of a name. Errors: ConfigError that lists the names.
Combination combination_named(const std::string& name);

// The estimate of a posterior.
struct CombinedDraws {
  PosteriorDraws draws;  // as many as of one sub-posterior; kPool: of all
  // kParametric: those of the product. All others: those of `draws`.
  Moments moments;
  double acceptance = 1;  // of the moves between the components of a mixture
};

// Combines the draws of all sub-posteriors, which have equal numbers of draws and parameters. seed: of the
// random numbers. Errors: Error(kNumeric), from product_of(); ConfigError if there are fewer than two draws.
CombinedDraws combine_draws(Combination combination, std::span<const PosteriorDraws> parts, uint64_t seed);

}  // namespace starling
