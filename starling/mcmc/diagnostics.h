// Whether a chain has run long enough.
#pragma once

#include <span>

namespace starling {

// Returns the potential scale reduction R̂ of the two halves of a chain (Gelman et al., "Bayesian data
// analysis", 3rd edition, section 11.4). It is near 1 if the halves agree, and above 1.05 if the chain is too
// short. The result is NaN for fewer than four numbers, or if all are equal.
double split_r_hat(std::span<const double> series);

// Returns the number of independent draws whose mean has the variance of the mean of `series`. The sum of
// autocorrelations is Geyer's initial monotone sequence ("Practical Markov chain Monte Carlo", 1992). A chain
// that turns back may have more than it has draws; the result is at most n log₁₀ n. The result is NaN for
// fewer than four numbers, or if all are equal.
double effective_size(std::span<const double> series);

}  // namespace starling
