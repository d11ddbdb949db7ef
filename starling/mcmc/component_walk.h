// Draws from the mixtures of the nonparametric and semiparametric estimators (Neiswanger, Wang and Xing 2014,
// sections 3.2 and 3.3).
//
// A component t = (t₁, …, t_M) takes one draw of each sub-posterior. With d parameters, the mean θ̄ of these
// draws and the bandwidth h:
//
//   w(t) = Πₘ N(θₘ | θ̄, h² I),                                     component N(θ̄, h²/M I)
//   W(t) = w(t) N(θ̄ | μ̂, Σ̂ + h²/M I) / Πₘ N(θₘ | μ̂ₘ, Σ̂ₘ),     component N(μ(t), Σ(t))
//   Σ(t) = (M/h² I + Σ̂⁻¹)⁻¹,   μ(t) = Σ(t) (M/h² θ̄ + Σ̂⁻¹ μ̂)
//
// The nonparametric estimator has the weights w and the first component. The semiparametric estimator has the
// second component and the weights W or w. μ̂ and Σ̂ are those of the product (product.h).
//
// The walk is algorithm 1 of the paper (independent Metropolis within Gibbs). For draw i the bandwidth is
// h = i^(-1/(4+d)). Each tₘ in turn gets a random proposal, which is accepted with the ratio of the weights.
// The paper makes one such sweep over m for each draw. Here the walk makes kWalkSweeps of them, because it
// moves little when h is small.
//
// The paper's bandwidth has no unit. Here its unit is the standard deviation of each parameter in the
// sub-posteriors (the root of the mean of their variances). So the result does not depend on units.
#pragma once

#include <cstdint>
#include <span>

#include "starling/mcmc/combine.h"

namespace starling {

// The sweeps for each draw.
inline constexpr int kWalkSweeps = 30;

// Returns the draws and the acceptance. combination: one of the mixtures. Errors: as combine_draws().
CombinedDraws walk_components(Combination combination, std::span<const PosteriorDraws> parts, uint64_t seed);

}  // namespace starling
