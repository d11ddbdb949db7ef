// TensorParallel shards the layers of one replica over the t ranks of a group
// (nn/tensor_parallel/shard_model.h).
//
// Any strategy can train a rank's part as if the part were a model. That strategy runs over the ranks that
// hold the same part of all replicas. TensorParallel combines the two, so that the trainer sees a strategy of
// whole models.
//
// Every rank of a replica holds a copy of some parameters (normalization, biases behind a sum). These copies
// stay equal: their gradients are bit-identical on the ranks of a replica, and an exchange treats all parts
// alike. The ranks compare hashes of the copies, as replicas do (replica/replica_hash.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/nn/tensor_parallel/tensor_group.h"
#include "starling/parallel/replica/model_parts.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Tensor parallelism as a strategy. Not thread-safe.
class TensorParallel final : public Strategy {
 public:
  // Makes the strategy that trains a rank's part. parts: the parameters of that part that other ranks of the
  // tensor group count.
  using MakeExchange =
      std::function<std::unique_ptr<Strategy>(const ModelFactory& part, const ModelParts& parts)>;

  // Collective over `tensor`, the ranks of one replica that shard its layers, and over what make_exchange
  // needs. `counting` lists groups whose traffic update() adds to bytes_sent, because no other object counts
  // it. hash_every: steps between comparisons of the copies, or 0 for none. plan: that of shard_model(). All
  // references must outlive this object. Errors: ConfigError if the model cannot be sharded.
  TensorParallel(ModelFactory factory, Group& tensor, std::vector<Group*> counting, const Clock& clock,
                 const MakeExchange& make_exchange, int64_t hash_every = 0, TensorPlan plan = {});
  // Like the constructor above, for a model that shard_model() has already sharded over `tensor`. `sharding`
  // is its result. `part` makes this rank's part.
  TensorParallel(const ModelFactory& part, ModelSharding sharding, TensorGroup& tensor,
                 std::vector<Group*> counting, const MakeExchange& make_exchange, int64_t hash_every = 0);

  // If one rank is asked to stop, all ranks of its replica ask to stop.
  void begin_step(const Step& step) override;
  // batch: the replica's samples of the step, equal on each rank of the replica.
  double forward_backward(const Batch& batch) override;
  // Errors: Error(kNumeric) on a rank whose copies differ from those of rank 0 of the tensor group, in a step
  // that compares them.
  StepReport update() override;
  void consensus() override;
  void show_average() override { exchange_->show_average(); }
  // Collective. Returns whole tensors. The state is complete on rank 0 of the group if the exchange's state
  // is complete there.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // This rank's part of the agreed model after consensus(). All ranks of the tensor group must evaluate the
  // same samples.
  Replica& evaluated() override { return exchange_->evaluated(); }
  int64_t whole_parameters() override { return whole_parameters_; }
  // The strategy that trains this rank's part.
  Strategy& exchange() { return *exchange_; }

  // Returns the statistics of the exchange on this rank's part, tensor_ranks, held_parameters,
  // whole_parameters and tensor_elements (moved in the last step; nn/tensor_parallel/tensor_group.h). A
  // transformer also has layer_elements, the elements moved for one layer, and layer_formula, 8 b s h (t −
  // 1)/t. The formula stands for four all-reduces of b samples, s tokens and width h.
  StrategyStats strategy_stats() override;
  std::vector<uint64_t> bytes_from_servers() override { return exchange_->bytes_from_servers(); }
  Traced* traced() override { return exchange_->traced(); }
  OwnLoop* own_loop() override { return exchange_->own_loop(); }

 private:
  ModelFactory sharded(ModelFactory factory);
  void make_exchange_of(const ModelFactory& part, const MakeExchange& make_exchange);
  uint64_t counted_bytes() const;
  void compare_copies();

  const std::unique_ptr<TensorGroup> own_group_;  // null if group_ is another object's
  TensorGroup& group_;
  std::vector<Group*> counting_;
  const TensorPlan plan_;
  ModelSharding sharding_;  // filled by the factory
  int64_t whole_parameters_ = 0;
  int64_t hash_every_;
  std::unique_ptr<Strategy> exchange_;
  std::map<std::string, LayerTraffic> traffic_;  // of the last step
  int64_t step_ = 0, tokens_ = 0;
  uint64_t bytes_before_ = 0;
};

}  // namespace starling
