// Random-walk Metropolis with a proposal that adapts in the warm-up (Haario, Saksman and Tamminen, "An
// adaptive Metropolis algorithm", 2001).
//
//   x' = x + s·L·z,   z ~ N(0, I),    accepted with probability min(1, p_m(x') / p_m(x))
//
// L·Lᵀ is the covariance of the points of the warm-up, with a diagonal that is larger by a factor close to 1.
// So units do not matter. L is computed anew nine times, at the end of each tenth of the warm-up but the
// last. After each of these times, the scale s begins at 2.38/√d and follows the acceptance (Andrieu and
// Thoms 2008): it aims at 0.44 for one parameter and at 0.234 for more. The last tenth of the warm-up finds
// the final scale. Both stay fixed after the warm-up, so that the chain is a Markov chain.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/mcmc/chain.h"
#include "starling/mcmc/matrix.h"
#include "starling/mcmc/spread.h"

namespace starling {

class RandomWalkChain final : public Chain {
 public:
  // See make_chain().
  RandomWalkChain(const ChainOptions& options, SubPosterior& density, std::vector<double> start,
                  uint64_t key);

  void advance() override;
  std::span<const double> position() const override { return x_; }
  ChainReport report() const override;
  std::vector<double> state() const override;
  void restore(std::span<const double> state) override;

 private:
  void adapt(double acceptance);
  void take_covariance();
  void list(ChainState& state);

  const ChainOptions options_;
  SubPosterior& density_;
  RandomStream random_;
  std::vector<double> x_;
  double log_density_ = 0;
  SquareMatrix lower_;    // L
  double log_scale_ = 0;  // log s
  double adapted_ = 0;    // transitions since log s began
  Spread spread_;         // of points of the warm-up
  int64_t transitions_ = 0, accepted_ = 0;
};

}  // namespace starling
