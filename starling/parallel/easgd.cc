#include "starling/parallel/easgd.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "starling/base/check.h"
#include "starling/parallel/exchange_parts.h"

namespace starling {

Easgd::Easgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, int64_t every,
             double elastic, Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock),
      every_(every),
      elastic_(elastic),
      center_(replica_.parameters().clone()) {
  STARLING_CHECK(every >= 1 && elastic > 0 && elastic <= 1, "every {}, elastic {}", every, elastic);
}

bool Easgd::advance(StepReport& report) {
  update_replica();
  if (step_.index % every_ != 0) return false;
  exchanging(report, ExchangePhase::kParameters, [&] {
    const at::NoGradGuard no_grad;
    at::Tensor& x = replica_.parameters();
    const at::Tensor distance = x - center_;
    x.sub_(distance, elastic_ / group_.size());
    center_.add_(mean_over_ranks(distance), elastic_);
  });
  replica_.parameters_changed();
  ++rounds_;
  return true;
}

StrategyStats Easgd::strategy_stats() {
  const at::NoGradGuard no_grad;
  replica_.hide();
  double squares = replica_.squares(replica_.parameters() - center_);
  if (group_.size() > 1) all_reduce(group_, &squares, 1, DataType::kFp64, ReduceOp::kAvg);
  StrategyStats stats = {{"rounds", rounds_}, {"disagreement", std::sqrt(squares)}};
  tell_threads(stats);
  return stats;
}

std::unique_ptr<Strategy> make_easgd(const ExchangeParts& parts) {
  const ExchangeSpec& exchange = parts.spec.exchange;
  return std::make_unique<Easgd>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica,
                                 exchange.every, exchange.elastic, parts.group, parts.clock);
}

}  // namespace starling
