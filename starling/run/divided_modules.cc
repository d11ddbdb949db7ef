#include "starling/run/divided_modules.h"

#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/parallel/replica/tensor_state.h"
#include "starling/parallel/tensor_parallel.h"

namespace starling {

class DividedModules::Division final : public LoopDivision {
 public:
  Division(const MeshGroups& axes, const Clock& clock, int64_t hash_every,
           std::shared_ptr<torch::nn::Module> module, const TensorPlan& plan)
      : axes_(axes), group_(axes.tensors(), clock), hash_every_(hash_every), module_(std::move(module)) {
    Model model{module_, nullptr, nullptr};
    sharding_ = shard_model(model, group_, plan);
  }

  Group& replicas() override { return axes_.replicas(); }
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
  const std::shared_ptr<torch::nn::Module> module_;  // so that no other module gets its address
  ModelSharding sharding_;
};

DividedModules::DividedModules(const MeshGroups& axes, const Clock& clock, int64_t hash_every)
    : axes_(axes), clock_(clock), hash_every_(hash_every) {}
DividedModules::~DividedModules() = default;

void DividedModules::divide(std::shared_ptr<torch::nn::Module> module, const TensorPlan& plan) {
  if (divisions_.contains(module.get()))
    throw ConfigError("Run::replicate",
                      "the layers of this module are divided already; call it once for each module");
  if (!plan.empty() && !plain_) plain_.emplace();
  const torch::nn::Module* key = module.get();
  divisions_[key] = std::make_unique<Division>(axes_, clock_, hash_every_, std::move(module), plan);
}

LoopDivision* DividedModules::division_of(const torch::nn::Module& module) const {
  const auto found = divisions_.find(&module);
  return found == divisions_.end() ? nullptr : found->second.get();
}

}  // namespace starling
