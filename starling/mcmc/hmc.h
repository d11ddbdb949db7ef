// Hamiltonian Monte Carlo (Neal, "MCMC using Hamiltonian dynamics", 2011).
//
//   H(x, p) = −log p_m(x) + Σ pᵢ² vᵢ / 2,     vᵢ: the variance of parameter i, by which p is scaled
//
// A transition draws p and integrates Hamilton's equations by leapfrog steps. It accepts the end with
// probability min(1, exp(H − H')). The number of steps varies at random, because a fixed one may be a period
// of the motion.
//
// Half of the warm-up finds a step size for vᵢ = 1 (dual_averaging.h) and then variances of the second part
// of its points. A trajectory of this half has at most 16 steps, because one with vᵢ = 1 may need very many.
// The next quarter repeats this with these variances, and the rest finds the final step size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/mcmc/chain.h"
#include "starling/mcmc/dual_averaging.h"
#include "starling/mcmc/spread.h"

namespace starling {

class HmcChain final : public Chain {
 public:
  // See make_chain().
  HmcChain(const ChainOptions& options, SubPosterior& density, std::vector<double> start, uint64_t key);

  void advance() override;
  std::span<const double> position() const override { return at_.x; }
  ChainReport report() const override;
  std::vector<double> state() const override;
  void restore(std::span<const double> state) override;

 private:
  struct Point {
    std::vector<double> x, gradient;
    double log_density = 0;
  };
  struct Proposal {
    Point point;
    double acceptance = 0;  // the probability
    bool diverged = false;
  };
  Proposal trajectory(double step, int64_t steps);
  void evaluate(Point& point);
  double first_step();
  double step() const;
  int64_t most_steps() const;
  void adapt(double acceptance);
  void take_variances();
  void list(ChainState& state);

  const ChainOptions options_;
  SubPosterior& density_;
  RandomStream random_;
  Point at_;
  std::vector<double> variances_;
  DualAveraging averaging_;
  Spread spread_;  // of points of the warm-up
  int64_t transitions_ = 0, accepted_ = 0, diverged_ = 0;
};

}  // namespace starling
