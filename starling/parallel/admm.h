// Consensus ADMM with stochastic x-steps. Each rank trains its own parameters on its own samples, and a
// penalty draws the parameters of all ranks together.
//
//   minimize Σ_k f_k(x_k)  subject to  x_k = z for all k          (scaled dual u_k)
//   x_k ← K steps of the optimizer on f_k(x) + ρ/2 ‖x − z + u_k‖²
//   z   ← 1/p Σ_k (x_k + u_k)
//   u_k ← u_k + x_k − z
//
// With momentum μ of the consensus, a round extrapolates z, as fast ADMM does (Goldstein, O'Donoghue, Setzer,
// Baraniuk, "Fast alternating direction optimization methods", SIAM J. Imaging Sciences 7(3), 2014). The
// round also extrapolates the points at which the next x-steps begin. Δ is 0 at first:
//
//   m ← 1/p Σ_k (x_k + u_k),   u_k ← u_k + x_k − m,   x_k ← x_k + μ Δ,   z ← m + μ Δ,   Δ ← z − z_before
//
// The mean of the x_k then has the momentum of SGD, and the differences between the ranks have none. Momentum
// in the x-step itself diverges, because the duals sum the differences that the momentum has already summed.
//
// (Boyd et al., "Distributed Optimization and Statistical Learning via ADMM", 2011, §7.1. The stochastic
// x-step follows Ouyang et al., ICML 2013.) The loss is the sum of the losses of all ranks, and one x serves
// all of them.
//
// A synchronization round costs one all-reduce of |W|, which is 2 (p − 1)/p · |W| bytes per rank. Samples
// never move.
//
// The primal residual is r = (Σ_k ‖x_k − z‖²)^½. The dual residual is s = ρ √p ‖z − z_before‖. Adaptive ρ
// (§3.4.1) doubles when r > 10 s and halves when s > 10 r. The scaled dual u_k = y_k/ρ is rescaled with ρ.
// The penalty's own step, x − lr ρ (x − z + u), diverges if lr ρ exceeds 2. Doubling therefore never takes ρ
// above 1/(2 lr), where lr is the largest rate so far. The start value of ρ is not limited.
#pragma once

#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// Settings of Admm.
struct AdmmOptions {
  int64_t every = 8;     // K, the number of steps in a synchronization round
  double rho = 0.01;     // the penalty ρ at the start
  bool adaptive = true;  // whether ρ follows the residuals
  double momentum = 0;   // μ, from 0 to below 1
};

// The exchange "admm".
class Admm final : public ReplicaStrategy {
 public:
  // Collective over the group. All ranks start with the same parameters. The group and the clock must outlive
  // this object.
  Admm(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
       const AdmmOptions& admm, Group& group, const Clock& clock);

  // Returns rounds, rho, samples_moved (always 0) and first_primal_residual. primal_residual and
  // dual_residual are those of the last round.
  StrategyStats strategy_stats() override;
  // The present penalty ρ.
  double rho() const { return rho_; }

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return z_.clone(); }
  std::map<std::string, at::Tensor*> own_ranges() override;
  std::map<std::string, double*> own_numbers() override { return {{"rho", &rho_}, {"max_lr", &max_lr_}}; }

 private:
  void round();
  void adapt_rho();

  AdmmOptions admm_;
  double rho_;
  double max_lr_ = 0;
  at::Tensor z_, u_;
  at::Tensor delta_;  // Δ; only with momentum
  double rounds_ = 0, primal_ = 0, dual_ = 0, first_primal_ = -1;
};

}  // namespace starling
