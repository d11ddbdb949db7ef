// Consensus ADMM with stochastic x-steps: the ranks keep their own samples and their own parameters, and are drawn together by
// a penalty.
//
//   minimise Σ_k f_k(x_k)  subject to  x_k = z for all k          (scaled dual u_k)
//   x_k ← K steps of the optimizer on f_k(x) + ρ/2 ‖x − z + u_k‖²
//   z   ← 1/p Σ_k (x_k + u_k)
//   u_k ← u_k + x_k − z
//
// (Boyd et al., "Distributed Optimization and Statistical Learning via ADMM", 2011, §7.1; the stochastic x-step as in Ouyang
// et al., ICML 2013.) A round costs one all-reduce of |W|: 2 (p − 1)/p · |W| bytes a rank; samples never move.
//
// Residuals: primal r = (Σ_k ‖x_k − z‖²)^½, dual s = ρ √p ‖z − z_before‖. Adaptive ρ (§3.4.1): ρ doubles when r > 10 s and
// halves when s > 10 r; the scaled dual u_k = y_k/ρ is rescaled with it. ρ stays below 1/(2 lr) for the largest lr so far: the
// penalty's own step, x − lr ρ (x − z + u), overshoots beyond 2.
// The text of the seed ("f(x_k) = loss_k, minimise f over x = Σ x_k") is read as this: the loss is the sum of the ranks'
// losses, and one x serves all of them.
#pragma once

#include "starling/parallel/replica_strategy.h"

namespace starling {

struct AdmmOptions {
  int64_t every = 8;  // K, steps of a round
  double rho = 0.01;  // penalty
  bool adaptive = true;
};

class Admm final : public ReplicaStrategy {
 public:
  Admm(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
       const AdmmOptions& admm, Group& group, const Clock& clock);

  // rounds, rho, primal_residual and dual_residual (of the last round), first_primal_residual, samples_moved (always 0).
  Fingerprint fingerprint() override;
  double rho() const { return rho_; }

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return z_.clone(); }
  std::map<std::string, at::Tensor*> own_ranges() override { return {{"u", &u_}, {"z", &z_}}; }
  std::map<std::string, double*> own_numbers() override { return {{"rho", &rho_}, {"max_lr", &max_lr_}}; }

 private:
  void round();
  void adapt_rho();

  AdmmOptions admm_;
  double rho_;
  double max_lr_ = 0;
  at::Tensor z_, u_;
  double rounds_ = 0, primal_ = 0, dual_ = 0, first_primal_ = -1;
};

}  // namespace starling
