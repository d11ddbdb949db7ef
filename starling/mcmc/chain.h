// A Markov chain that samples one sub-posterior.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "starling/mcmc/random_stream.h"
#include "starling/mcmc/sub_posterior.h"

namespace starling {

// The algorithms that make chains.
enum class Sampler {
  kHmc,         // Hamiltonian Monte Carlo (hmc.h)
  kRandomWalk,  // random-walk Metropolis (random_walk.h)
};

// The settings of a chain.
struct ChainOptions {
  Sampler sampler = Sampler::kHmc;  // the algorithm
  int64_t warmup = 1000;            // transitions that adapt the chain and give no draws
  double target_acceptance = 0.8;   // of HMC: the mean acceptance probability that the step size aims at
  // Of HMC: the mean length of a trajectory, in standard deviations. A quarter of a period is π/2.
  double length = 1.5708;
  int64_t most_steps = 200;  // of HMC: the largest number of leapfrog steps of a trajectory
};

// What a chain has done so far. A fixed layout, because ranks send it.
struct ChainReport {
  double draws = 0;        // transitions after the warm-up
  double accepted = 0;     // of these transitions
  double diverged = 0;     // of these transitions, by an energy error above 1000
  double evaluations = 0;  // of the posterior, with the warm-up
  double step = 0;         // the step size of HMC, or the scale of the random walk's proposals
};

// Chain makes one transition after another. A chain depends on its sub-posterior, its options and its key
// alone. Not thread-safe.
class Chain {
 public:
  virtual ~Chain() = default;
  // Makes one transition. Errors: those of SubPosterior::log_density().
  virtual void advance() = 0;
  // Returns the present point. It is valid until the next transition.
  virtual std::span<const double> position() const = 0;
  // Returns what the chain has done.
  virtual ChainReport report() const = 0;
  // Returns all that determines the further transitions.
  virtual std::vector<double> state() const = 0;
  // Goes on from a state(). Errors: Error(kCheckpoint) if the state belongs to another kind of chain.
  virtual void restore(std::span<const double> state) = 0;
};

// Makes a chain that begins at `start`. The density must outlive the chain. key: of its random numbers.
// Errors: ConfigError if `start` does not have one number per parameter; Error(kNumeric) if the density is 0
// at `start`; those of SubPosterior::log_density().
std::unique_ptr<Chain> make_chain(const ChainOptions& options, SubPosterior& density,
                                  std::vector<double> start, uint64_t key);

// Throws ConfigError if an option is out of range.
void check_chain(const ChainOptions& options);

}  // namespace starling
