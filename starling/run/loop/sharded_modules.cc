#include "starling/run/loop/sharded_modules.h"

#include <torch/utils.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/parallel/replica/broadcast_tensor.h"
#include "starling/parallel/replica/tensor_state.h"
#include "starling/parallel/tensor_parallel.h"

namespace starling {
class ShardedModules::Sharding final : public LoopSharding {
 public:
  Sharding(const ShardedModules& all, const std::shared_ptr<torch::nn::Module>& module,
           const TensorPlan& plan)
      : axes_(all.axes_), group_(axes_.tensors(), all.clock_), hash_every_(all.hash_every_), module_(module) {
    group_.on_fault(all.on_fault_);
    Model model{module, nullptr, nullptr};
    for (const auto& part : module->modules()) modules_.insert(part.get());
    sharding_ = shard_model(model, group_, plan, WholeModel::kAllow);
  }

  bool exists() const { return !module_.expired(); }
  bool contains(const torch::nn::Module& module) const { return exists() && modules_.contains(&module); }
  bool shards() const { return !sharding_.slices.empty(); }

  Group& replicas() override { return axes_.replicas(); }
  void begin_equal(LoopModel& model) override {
    require_same_model(group_.group(), model, SameModel::kNames);
    const at::NoGradGuard no_grad;
    for (auto* tensors : {&model.parameters, &model.frozen, &model.buffers}) {
      for (NamedTensor& t : *tensors) {
        if (!sharding_.slices.contains(t.name)) broadcast_tensor(group_.group(), t.tensor, 0);
      }
    }
  }
  std::unique_ptr<Strategy> make_strategy(const ModelFactory& part,
                                          const MakeExchange& make_exchange) override {
    std::vector<Group*> counting = {&axes_.tensors(), &axes_.replicas()};
    return std::make_unique<TensorParallel>(part, sharding_, group_, std::move(counting), make_exchange,
                                            hash_every_);
  }
  std::map<std::string, at::Tensor> whole(const std::map<std::string, at::Tensor>& parts) override {
    return join_state(parts, sharding_.slices, group_.group());
  }
  std::map<std::string, at::Tensor> parts(const std::map<std::string, at::Tensor>& whole) override {
    return cut_state(whole, sharding_.slices, group_.size(), group_.rank());
  }

 private:
  const MeshGroups& axes_;
  TensorGroup group_;
  const int64_t hash_every_;
  const std::weak_ptr<torch::nn::Module> module_;
  std::set<const torch::nn::Module*> modules_;  // it and its submodules
  ModelSharding sharding_;
};

ShardedModules::ShardedModules(const MeshGroups& axes, const Clock& clock, int64_t hash_every,
                               std::function<void()> on_fault)
    : axes_(axes), clock_(clock), hash_every_(hash_every), on_fault_(std::move(on_fault)) {}
ShardedModules::~ShardedModules() = default;

void ShardedModules::require_whole(const torch::nn::Module& module) const {
  for (const auto& part : module.modules()) {
    for (const auto& [root, sharding] : shardings_) {
      if (sharding->contains(*part))
        throw ConfigError(
            "Run::replicate",
            "the module contains layers that an earlier call has sharded; make one module of all "
            "parts that share layers, and call it once");
    }
  }
}

bool ShardedModules::shard(const std::shared_ptr<torch::nn::Module>& module, const TensorPlan& plan) {
  require_whole(*module);
  std::erase_if(shardings_, [](const auto& item) { return !item.second->exists(); });
  if (!plan.empty() && !plain_) plain_.emplace();
  auto sharding = std::make_unique<Sharding>(*this, module, plan);
  return shardings_.insert_or_assign(module.get(), std::move(sharding)).first->second->shards();
}

LoopSharding* ShardedModules::sharding_of(const torch::nn::Module& module) const {
  const auto found = shardings_.find(&module);
  if (found != shardings_.end() && found->second->exists()) return found->second.get();
  for (const auto& [root, sharding] : shardings_) {
    if (sharding->contains(module))
      throw ConfigError(
          "DistributedOptimizer",
          "the module is a part of one that Run::replicate() has sharded; pass the whole module, "
          "and an optimizer of the parameters that it trains");
  }
  return nullptr;
}

}  // namespace starling
