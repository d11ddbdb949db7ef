// The step size of HMC (Hoffman and Gelman, "The No-U-Turn sampler", JMLR 2014, section 3.2).
#pragma once

#include <cmath>
#include <cstdint>

namespace starling {

// DualAveraging finds the step size ε at which the mean acceptance probability is a target δ.
//
//   H̄ₜ = (1 − 1/(t + t₀)) H̄ₜ₋₁ + (δ − αₜ)/(t + t₀)
//   log εₜ₊₁ = μ − (√t / γ) H̄ₜ,    log ε̄ₜ = t^(−κ) log εₜ₊₁ + (1 − t^(−κ)) log ε̄ₜ₋₁
//
// The constants are γ = 0.05, t₀ = 10, κ = 0.75 and μ = log(10 ε₁), as in the paper.
struct DualAveraging {
  // Begins at a step size.
  void begin(double step) { *this = {.mu = std::log(10 * step), .log_step = std::log(step)}; }
  // Takes the acceptance probability of a transition that used step().
  void update(double acceptance, double target) {
    constexpr double kGamma = 0.05, kT0 = 10, kKappa = 0.75;
    count += 1;
    error += ((target - acceptance) - error) / (count + kT0);
    log_step = mu - std::sqrt(count) / kGamma * error;
    const double weight = std::pow(count, -kKappa);
    log_mean = weight * log_step + (1 - weight) * log_mean;
  }
  // The step size of the next transition of the warm-up.
  double step() const { return std::exp(log_step); }
  // The step size after the warm-up.
  double final_step() const { return std::exp(count > 0 ? log_mean : log_step); }

  // The state, which a checkpoint holds.
  double mu = 0;        // towards which log ε shrinks
  double log_step = 0;  // log ε
  double log_mean = 0;  // log ε̄
  double error = 0;     // H̄
  double count = 0;     // t
};

}  // namespace starling
