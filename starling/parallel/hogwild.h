// Threads that train the model of one rank without locks (train.threads_mode = "hogwild"), if the rank is
// alone. replica/hogwild_team.h has the algorithm. No bytes are sent.
//
// With several ranks, exchanges whose ranks train alone between rounds use the same threads
// (ExchangeTraits::hogwild).
#pragma once

#include <memory>

#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// The strategy of one rank whose threads train without locks. A step ends when all threads have made their
// updates.
class Hogwild final : public ReplicaStrategy {
 public:
  // options.hogwild has at least one thread. The group has one rank. The rule is sgd without momentum. The
  // group and the clock must outlive this object.
  Hogwild(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, Group& group,
          const Clock& clock);

  // Returns the statistics of HogwildTeam::tell.
  StrategyStats strategy_stats() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return replica_.parameters().clone(); }
};

// Makes the strategy of a rank that is alone. Errors: those of make_update_rule().
std::unique_ptr<Strategy> make_hogwild(const ExchangeParts& parts);

}  // namespace starling
