// ZeRO stages 1 and 2 with the optimizer of the user's program. Each rank owns 1/p of the flat parameters. It
// receives the mean of the gradients there, its optimizer updates these elements, and the parameters are
// gathered:
//
//   g_r ← 1/p Σ_k g_k  on the elements of rank r;  w_r ← O(w_r, g_r);  w ← all w_r
//
// (Rajbhandari et al. 2020, arXiv 1910.02054. zero.h has the form with an update rule, and stage 3.) The
// states of the optimizer exist once over all ranks. The optimizer must update each element by itself. A rank
// sends 2 (p − 1)/p |W| bytes in a step, or 3 (p − 1)/p |W| if the loop calls synchronize().
//
// With a codec, the gradients travel as messages (codec/coded_reduce_scatter.h), and the parameters as they
// are. With synchronize(), the means of the decoded gradients are gathered as they are, too.
//
// Stage 1 keeps the memory of the whole gradient. In stage 2, the gradient of one backward pass exists until
// it is reduced. The optimizer then gets 1/p of it, and no gradient exists between the steps.
#pragma once

#include <memory>

#include "starling/codec/coded_reduce_scatter.h"
#include "starling/parallel/replica/own_gradients.h"
#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// The strategy of train.shard = "optimizer" and "gradients" with an own optimizer. Not thread-safe.
class ShardedOptimizer final : public ReplicaStrategy {
 public:
  // Collective. options.optimizer is set. With options.releases_gradients this is stage 2. The group and the
  // clock must outlive this object. codec: of the gradients; null for none. Errors: ConfigError if the
  // optimizer cannot be sharded, or if the codec cannot encode the type of the parameters.
  ShardedOptimizer(const ModelFactory& factory, UpdateRule rule, FlatReplicaOptions options,
                   const CodecSpec* codec, Group& group, const Clock& clock);

  // Returns parameter_bytes, shard_elements and gradient_elements. `shard_elements` is the number of elements
  // that this rank updates. `gradient_elements` is the number of gradient elements that this rank held while
  // its optimizer updated. With a codec, the statistics of tell_messages() follow for the messages of a step,
  // and residual_norm and codec_bytes as in Zero. Collective with a codec.
  StrategyStats strategy_stats() override;

 protected:
  bool averages_gradients() const override { return true; }
  bool equal_optimizers() const override { return group_.size() == 1; }
  void exchange_gradients(bool whole) override;
  bool advance(StepReport& report) override;
  at::Tensor agreed() override { return replica_.parameters().clone(); }
  at::Tensor own_values() override;
  void take_own_values(const at::Tensor& values) override;

 private:
  void exchange_coded(bool whole);
  void clip(at::Tensor& gradients) const;
  // This rank's elements of the gradients. In stage 2, they are taken out of the whole gradient, which is
  // freed.
  at::Tensor own_gradients();

  OwnedRange own_;      // this rank's elements of the flat ranges
  at::Tensor reduced_;  // the mean of the gradients on these elements, from the reduction to the update
  int64_t held_ = 0;    // elements of gradients during the last update
  std::unique_ptr<CodedReduceScatter> coded_;  // of the gradients; null without a codec
};

struct ExchangeParts;

// Makes the strategy of train.shard with an own optimizer, whatever the stage. Collective.
std::unique_ptr<Strategy> make_sharded_optimizer(const ExchangeParts& parts);

}  // namespace starling
