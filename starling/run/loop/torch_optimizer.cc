#include "starling/run/loop/torch_optimizer.h"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/serialize.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>
#include <typeinfo>

#include "starling/base/error.h"
#include "starling/run/loop/torch_rule.h"
#include "starling/server/service_settings.h"

namespace starling {
namespace {

template <typename Options>
void take_betas(const Options& options, OptimizerSpec& spec) {
  std::tie(spec.beta1, spec.beta2) = options.betas();
  spec.eps = options.eps();
}

// Returns the update rule of a group of parameters, or nothing if there is none that makes the same updates.
std::optional<OptimizerSpec> rule_of(const torch::optim::Optimizer& optimizer,
                                     const torch::optim::OptimizerOptions& options) {
  namespace optim = torch::optim;
  OptimizerSpec spec;
  spec.momentum = 0;
  const auto is = [&](const std::type_info& type) { return typeid(optimizer) == type; };
  if (is(typeid(optim::SGD))) {
    const auto& sgd = dynamic_cast<const optim::SGDOptions&>(options);
    // The momentum of the rule contains the rates of earlier steps, and that of libtorch does not.
    if (sgd.momentum() != 0) return std::nullopt;
    spec.name = "sgd";
    spec.weight_decay = sgd.weight_decay();
  } else if (is(typeid(optim::Adam))) {
    const auto& adam = dynamic_cast<const optim::AdamOptions&>(options);
    if (adam.amsgrad()) return std::nullopt;
    spec.name = "adam";
    spec.weight_decay = adam.weight_decay();
    take_betas(adam, spec);
  } else if (is(typeid(optim::AdamW))) {
    const auto& adamw = dynamic_cast<const optim::AdamWOptions&>(options);
    if (adamw.amsgrad()) return std::nullopt;
    spec.name = "adamw";
    spec.weight_decay = adamw.weight_decay();
    take_betas(adamw, spec);
  } else if (is(typeid(optim::Adagrad))) {
    const auto& adagrad = dynamic_cast<const optim::AdagradOptions&>(options);
    if (adagrad.lr_decay() != 0 || adagrad.initial_accumulator_value() != 0) return std::nullopt;
    spec.name = "adagrad";
    spec.weight_decay = adagrad.weight_decay();
    spec.eps = adagrad.eps();
  } else {
    return std::nullopt;
  }
  spec.lr = options.get_lr();
  return spec;
}

// libtorch's Adagrad makes the state of each parameter with the optimizer. Gives each part its elements of
// it.
void shard_adagrad(torch::optim::Optimizer& optimizer, const std::vector<ParameterPart>& parts) {
  using State = torch::optim::AdagradParamState;
  auto& states = optimizer.state();
  for (const ParameterPart& p : parts) {
    const auto found = states.find(p.whole.unsafeGetTensorImpl());
    if (found == states.end()) continue;
    const auto whole = std::move(found->second);
    states.erase(found);
    if (!p.part.defined()) continue;
    const at::Tensor sum = dynamic_cast<const State&>(*whole).sum();
    auto own = std::make_unique<State>();
    own->step(dynamic_cast<const State&>(*whole).step());
    own->sum(sum.as_strided({p.part.numel()}, {1}, sum.storage_offset() + p.first).clone());
    states[p.part.unsafeGetTensorImpl()] = std::move(own);
  }
}

class TorchOptimizer final : public OwnOptimizer {
 public:
  explicit TorchOptimizer(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) { keep_rates(); }
  explicit TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer)
      : owned_(std::move(optimizer)), optimizer_(*owned_) {
    keep_rates();
  }

  void step() override { optimizer_.step(); }
  double lr() const override { return optimizer_.param_groups().front().options().get_lr(); }
  void scale_lr(double factor) override {
    for (size_t i = 0; i < rates_.size(); ++i)
      optimizer_.param_groups()[i].options().set_lr(rates_[i] * factor);
  }

  bool rates_share_a_factor() const override {
    for (size_t i = 1; i < rates_.size(); ++i) {
      const double scaled = lr() * rates_[i];
      const double own = optimizer_.param_groups()[i].options().get_lr() * rates_.front();
      if (std::abs(own - scaled) > 1e-9 * std::abs(scaled)) return false;
    }
    return true;
  }

  bool elementwise() const override { return is_known_optimizer(optimizer_); }

  bool shard(const std::vector<ParameterPart>& parts) override {
    if (!elementwise()) return false;
    const bool adagrad = dynamic_cast<torch::optim::Adagrad*>(&optimizer_) != nullptr;
    if (!adagrad && !optimizer_.state().empty()) {
      throw ConfigError("",
                        "the program's optimizer already has states of earlier steps, which --shard and "
                        "--exchange central cannot divide; let it begin without states, or use --exchange "
                        "all-reduce without --shard");
    }
    std::map<const c10::TensorImpl*, at::Tensor> part_of;
    for (const ParameterPart& p : parts) part_of[p.whole.unsafeGetTensorImpl()] = p.part;
    for (auto& group : optimizer_.param_groups()) {
      std::vector<at::Tensor> own;
      for (const at::Tensor& whole : group.params()) {
        const auto part = part_of.find(whole.unsafeGetTensorImpl());
        if (part != part_of.end() && part->second.defined()) own.push_back(part->second);
      }
      group.params() = std::move(own);
    }
    if (adagrad) shard_adagrad(optimizer_, parts);
    return true;
  }

  std::optional<OptimizerSpec> rule() const override {
    std::optional<OptimizerSpec> rule;
    for (const auto& group : optimizer_.param_groups()) {
      const std::optional<OptimizerSpec> own = rule_of(optimizer_, group.options());
      if (!own || (rule && to_text({.optimizer = *own}) != to_text({.optimizer = *rule})))
        return std::nullopt;
      rule = own;
    }
    return rule;
  }

  std::optional<TorchSettings> on_servers(const std::vector<NamedTensor>& parameters) const override {
    return torch_settings(optimizer_, parameters);
  }

  at::Tensor state() override {
    std::ostringstream stream;
    torch::serialize::OutputArchive archive;
    optimizer_.save(archive);
    archive.save_to(stream);
    const std::string bytes = stream.str();
    at::Tensor state = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
    return state;
  }

  void load_state(const at::Tensor& bytes) override {
    try {
      const at::Tensor whole = bytes.contiguous();
      std::istringstream stream(
          std::string(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()));
      torch::serialize::InputArchive archive;
      archive.load_from(stream);
      optimizer_.load(archive);
    } catch (const c10::Error& error) {
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("the state of the program's optimizer in the checkpoint does not fit: {}. Use the "
                      "optimizer and the parameter groups of the run that wrote it",
                      error.what_without_backtrace()));
    }
  }

 private:
  void keep_rates() {
    for (const auto& group : optimizer_.param_groups()) rates_.push_back(group.options().get_lr());
  }

  std::unique_ptr<torch::optim::Optimizer> owned_;
  torch::optim::Optimizer& optimizer_;
  std::vector<double> rates_;  // with which the groups were made
};

}  // namespace

std::shared_ptr<OwnOptimizer> adapt_optimizer(torch::optim::Optimizer& optimizer) {
  return std::make_shared<TorchOptimizer>(optimizer);
}

std::shared_ptr<OwnOptimizer> adapt_optimizer(std::unique_ptr<torch::optim::Optimizer> optimizer) {
  return std::make_shared<TorchOptimizer>(std::move(optimizer));
}

void replace_parameters(torch::optim::Optimizer& optimizer,
                        const std::map<const c10::TensorImpl*, at::Tensor>& copies) {
  using State = torch::optim::AdagradParamState;  // it exists before the first step
  auto& states = optimizer.state();
  const bool adagrad = typeid(optimizer) == typeid(torch::optim::Adagrad);
  if (!states.empty() && !adagrad) {
    throw ConfigError("DistributedOptimizer",
                      "the optimizer already has states of earlier steps on a device, and its updates are "
                      "made in host memory; make a new optimizer");
  }
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const auto copy = copies.find(parameter.unsafeGetTensorImpl());
      if (copy == copies.end()) continue;
      const auto state = states.find(parameter.unsafeGetTensorImpl());
      parameter = copy->second;
      if (state == states.end()) continue;
      auto own = std::move(state->second);
      states.erase(state);
      auto& sums = dynamic_cast<State&>(*own);
      sums.sum(sums.sum().to(parameter.device()));
      states[parameter.unsafeGetTensorImpl()] = std::move(own);
    }
  }
}

std::vector<NamedTensor> parameters_of(const torch::nn::Module& module,
                                       const torch::optim::Optimizer& optimizer) {
  std::set<const c10::TensorImpl*> updated;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) updated.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<NamedTensor> parameters;
  for (const auto& item : module.named_parameters()) {
    if (updated.erase(item.value().unsafeGetTensorImpl()) == 0 || !item.value().requires_grad()) continue;
    parameters.push_back({item.key(), item.value()});
  }
  if (!updated.empty()) {
    throw ConfigError(
        "DistributedOptimizer",
        fmt::format(
            "the optimizer has {} parameters that are not the module's; give the module "
            "that owns all of them, or one optimizer for each module. With --shard, --exchange central "
            "and modules on a device, each DistributedOptimizer needs a new optimizer",
            updated.size()));
  }
  return parameters;
}

}  // namespace starling
