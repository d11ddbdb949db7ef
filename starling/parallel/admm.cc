#include "starling/parallel/admm.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "starling/base/check.h"
#include "starling/parallel/exchange_parts.h"

namespace starling {

Admm::Admm(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
           const AdmmOptions& admm, Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock),
      admm_(admm),
      rho_(admm.rho),
      z_(replica_.parameters().clone()),
      u_(at::zeros_like(z_)) {
  STARLING_CHECK(admm.every >= 1 && admm.rho > 0, "ADMM needs every >= 1 and rho > 0, not {} and {}",
                 admm.every, admm.rho);
  STARLING_CHECK(admm.momentum >= 0 && admm.momentum < 1, "momentum {} of the consensus", admm.momentum);
  if (admm.momentum > 0) delta_ = at::zeros_like(z_);
}

std::map<std::string, at::Tensor*> Admm::own_ranges() {
  std::map<std::string, at::Tensor*> ranges = {{"u", &u_}, {"z", &z_}};
  if (delta_.defined()) ranges["delta"] = &delta_;
  return ranges;
}

bool Admm::advance(StepReport& report) {
  at::NoGradGuard no_grad;
  max_lr_ = std::max(max_lr_, step_.lr);
  at::Tensor& g = replica_.gradients();
  const at::Tensor& x = replica_.parameters();
  g.add_(x, rho_).sub_(z_, rho_).add_(u_, rho_);
  replica_.update(step_);
  if (step_.index % admm_.every != 0) return false;
  exchanging(report, ExchangePhase::kParameters, [&] { round(); });
  return true;
}

void Admm::round() {
  ++rounds_;
  const at::Tensor before = z_;
  const at::Tensor& x = replica_.parameters();
  z_ = mean_over_ranks(x + u_);
  const at::Tensor distance = x - z_;
  u_.add_(distance);
  double squares = replica_.squares(distance);
  if (group_.size() > 1) all_reduce(group_, &squares, 1, DataType::kFp64, ReduceOp::kSum);
  primal_ = std::sqrt(squares);
  dual_ = rho_ * std::sqrt(static_cast<double>(group_.size()) * replica_.squares(z_ - before));
  if (first_primal_ < 0) first_primal_ = primal_;
  if (admm_.adaptive) adapt_rho();
  if (!delta_.defined()) return;
  delta_.mul_(admm_.momentum);
  replica_.parameters().add_(delta_);
  replica_.parameters_changed();
  z_.add_(delta_);
  delta_ = z_ - before;
}

void Admm::adapt_rho() {
  if (primal_ > 10 * dual_ && 2 * rho_ * max_lr_ <= 0.5) {
    rho_ *= 2;
    u_.div_(2);
  } else if (dual_ > 10 * primal_) {
    rho_ /= 2;
    u_.mul_(2);
  }
}

StrategyStats Admm::strategy_stats() {
  return {{"rounds", rounds_},
          {"rho", rho_},
          {"primal_residual", primal_},
          {"dual_residual", dual_},
          {"first_primal_residual", first_primal_ < 0 ? 0 : first_primal_},
          {"samples_moved", 0}};
}

std::unique_ptr<Strategy> make_admm(const ExchangeParts& parts) {
  const ExchangeSpec& exchange = parts.spec.exchange;
  const AdmmOptions admm{exchange.every, exchange.rho, exchange.adaptive_rho, exchange.block_momentum};
  return std::make_unique<Admm>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica, admm,
                                parts.group, parts.clock);
}

}  // namespace starling
