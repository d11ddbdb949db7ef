#include "starling/parallel/hogwild.h"

#include <ATen/ATen.h>

#include <utility>

#include "starling/base/check.h"

namespace starling {

Hogwild::Hogwild(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                 Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock) {
  STARLING_CHECK(options.hogwild.threads >= 1 && group.size() == 1, "{} threads, {} ranks",
                 options.hogwild.threads, group.size());
}

bool Hogwild::advance(StepReport& /*report*/) {
  update_replica();
  return true;
}

StrategyStats Hogwild::strategy_stats() {
  StrategyStats stats;
  tell_threads(stats);
  return stats;
}

std::unique_ptr<Strategy> make_hogwild(const ExchangeParts& parts) {
  return std::make_unique<Hogwild>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica,
                                   parts.group, parts.clock);
}

}  // namespace starling
