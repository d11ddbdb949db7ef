// ShardedModules shards the layers of a program's modules over the ranks of the tensor axis
// (nn/tensor_parallel/shard_model.h). A training loop of the program's own then trains them
// (run/loop/distributed_optimizer.h).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "starling/base/clock.h"
#include "starling/nn/tensor_parallel/plain_linear.h"
#include "starling/nn/tensor_parallel/tensor_plan.h"
#include "starling/parallel/loop_strategy.h"
#include "starling/run/ranks/mesh_groups.h"

namespace starling {

// The sharded modules of one rank. Not thread-safe.
class ShardedModules {
 public:
  // `axes` and `clock` must outlive this object. hash_every: the steps between comparisons of what the ranks
  // of a replica hold alike, or 0 for none. on_fault: called while an error of the communication in a forward
  // or backward pass is being handled. It may end the process.
  ShardedModules(const MeshGroups& axes, const Clock& clock, int64_t hash_every,
                 std::function<void()> on_fault);
  ~ShardedModules();

  // Throws ConfigError if the module or a part of it is sharded.
  void require_whole(const torch::nn::Module& module) const;
  // Keeps this rank's parts of the module's layers. The module must be equal on all ranks. Its forward and
  // backward passes are collective over the ranks of the tensor axis from now on, and need this object.
  // Returns false if there was no layer to shard, so that each rank computes the whole module. Errors: those
  // of shard_model() and require_whole().
  bool shard(const std::shared_ptr<torch::nn::Module>& module, const TensorPlan& plan);
  // Returns the sharding of a module, or null if there is none. This object owns it. Errors: ConfigError if
  // the module is a part of a sharded one.
  LoopSharding* sharding_of(const torch::nn::Module& module) const;

 private:
  class Sharding;
  const MeshGroups& axes_;
  const Clock& clock_;
  const int64_t hash_every_;
  const std::function<void()> on_fault_;
  std::optional<PlainLinears> plain_;  // once a plan names layers of libtorch
  std::map<const torch::nn::Module*, std::unique_ptr<Sharding>> shardings_;
};

}  // namespace starling
