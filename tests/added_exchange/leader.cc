// An exchange that is not part of Starling. Every rank takes the weights of rank 0 after each update.
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/replica/replica_strategy.h"

namespace starling {
namespace {

class Leader final : public ReplicaStrategy {
 public:
  using ReplicaStrategy::ReplicaStrategy;
  StrategyStats strategy_stats() override { return {{"copies", copies_}}; }

 protected:
  bool advance(StepReport& report) override {
    replica_.update(step_);
    exchanging(report, ExchangePhase::kParameters, [&] {
      at::Tensor& x = replica_.parameters();
      broadcast(group_, x.data_ptr(), x.numel(), DataType::kFp64, 0);
    });
    replica_.parameters_changed();
    ++copies_;
    return true;
  }
  at::Tensor agreed() override { return replica_.parameters().clone(); }

 private:
  double copies_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_leader(const ExchangeParts& parts) {
  return std::make_unique<Leader>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica,
                                  parts.group, parts.clock);
}

}  // namespace starling
