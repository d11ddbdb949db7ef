// All-reduce data parallelism with the optimizer of the user's program, or with an update that needs the
// whole gradient first (optimizer.clip_value, lars, lamb). Each rank's gradient becomes the mean over the
// ranks, and every rank makes the same update:
//
//   w_{t+1} = O( w_t, 1/p Σ_k g_k(w_t) )
//
// all_reduce.h has the form with an update rule, which reduces and updates in one pass over memory. This form
// works with any optimizer (parallel/replica/own_optimizer.h), and with an update rule, too. The exchange
// begins after backward.
#pragma once

#include <utility>

#include "starling/c10d/data_type.h"
#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// The exchange "all-reduce" without a codec, in this form. Not thread-safe.
class MeanGradient final : public ReplicaStrategy {
 public:
  // Collective. The group and the clock must outlive this object.
  MeanGradient(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, Group& group,
               const Clock& clock)
      : ReplicaStrategy(factory, std::move(rule), averaged(options, group), group, clock) {}

  // Returns parameter_bytes.
  StrategyStats strategy_stats() override {
    return {{"parameter_bytes", static_cast<double>(replica_.bytes())}};
  }

 protected:
  bool averages_gradients() const override { return true; }
  void exchange_gradients(bool /*whole*/) override {
    if (group_.size() == 1) return;
    // Afterwards no rank can tell whose gradient was not finite.
    if (!replica_.options().own_gradients) replica_.check_gradients(step_.index);
    at::Tensor& g = replica_.gradients();
    all_reduce(group_, g.data_ptr(), g.numel(), data_type_of(g.scalar_type()), ReduceOp::kAvg);
  }
  bool advance(StepReport&) override {
    replica_.update(step_);
    return true;
  }
  at::Tensor agreed() override { return replica_.parameters().clone(); }

 private:
  static FlatReplicaOptions averaged(FlatReplicaOptions options, Group& group) {
    options.mean_over = &group;  // a weighted loss is a mean over the weights of all ranks
    return options;
  }
};

}  // namespace starling
