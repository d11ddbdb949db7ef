#include "starling/run/loop/own_optimizer_maker.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "starling/base/error.h"
#include "starling/parallel/loop_strategy.h"
#include "starling/run/loop/torch_optimizer.h"
#include "starling/spec/mesh.h"
#include "starling/spec/optimizer_refusal.h"

namespace starling {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

template <typename Options>
std::unique_ptr<OptimizerOptions> adaptive(const OptimizerSpec& spec, double lr, double weight_decay) {
  Options options(lr);
  options.weight_decay(weight_decay).eps(spec.eps);
  if constexpr (requires { options.betas(); }) options.betas({spec.beta1, spec.beta2});
  return std::make_unique<Options>(options);
}

std::unique_ptr<OptimizerOptions> options_of(const OptimizerSpec& spec, double lr, double weight_decay) {
  if (spec.name == "adam") return adaptive<torch::optim::AdamOptions>(spec, lr, weight_decay);
  if (spec.name == "adamw") return adaptive<torch::optim::AdamWOptions>(spec, lr, weight_decay);
  if (spec.name == "adagrad") return adaptive<torch::optim::AdagradOptions>(spec, lr, weight_decay);
  auto options = std::make_unique<torch::optim::SGDOptions>(lr);
  options->momentum(spec.momentum).nesterov(spec.nesterov).weight_decay(weight_decay);
  return options;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const OptimizerSpec& spec,
                                                      std::vector<OptimizerParamGroup> groups) {
  if (spec.name == "adam") return std::make_unique<torch::optim::Adam>(std::move(groups));
  if (spec.name == "adamw") return std::make_unique<torch::optim::AdamW>(std::move(groups));
  if (spec.name == "adagrad") return std::make_unique<torch::optim::Adagrad>(std::move(groups));
  return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(spec.lr));
}

// Returns the number of the first group that a parameter belongs to, or groups.size().
size_t group_of(const std::vector<ParameterGroup>& groups, const std::string& name) {
  size_t g = 0;
  while (g < groups.size() && fnmatch(groups[g].pattern.c_str(), name.c_str(), 0) != 0) ++g;
  return g;
}

// Returns one group of libtorch's for each group of the options that has one of the parameters, and a last
// one for all other parameters.
std::vector<OptimizerParamGroup> groups_of(const std::vector<ParameterGroup>& groups,
                                           const OptimizerSpec& spec,
                                           const std::vector<NamedTensor>& parameters) {
  std::vector<std::vector<at::Tensor>> of_group(groups.size() + 1);
  for (const NamedTensor& p : parameters) of_group[group_of(groups, p.name)].push_back(p.tensor);
  std::vector<OptimizerParamGroup> result;
  for (size_t g = 0; g < of_group.size(); ++g) {
    if (of_group[g].empty()) continue;
    GroupSettings own;
    if (g < groups.size()) own = groups[g].settings;
    result.emplace_back(of_group[g], options_of(spec, own.lr.value_or(spec.lr),
                                                own.weight_decay.value_or(spec.weight_decay)));
  }
  return result;
}

// An optimizer that is not elementwise would compute another update from a part of a tensor.
std::shared_ptr<OwnOptimizer> checked(std::shared_ptr<OwnOptimizer> optimizer, bool sharded) {
  if (sharded && !optimizer->elementwise()) {
    throw ConfigError(
        "train.mesh",
        "the program's optimizer is none of libtorch's that update each element by itself (SGD, "
        "Adam, AdamW, Adagrad, RMSprop), so it cannot train sharded layers: leave out tensor, "
        "or use one of them");
  }
  return optimizer;
}

}  // namespace

void require_groups_match(const FitOptions& options, const torch::nn::Module& module) {
  const std::vector<ParameterGroup>& groups = options.groups();
  std::vector<bool> used(groups.size() + 1);
  std::string first;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    if (first.empty()) first = item.key();
    used[group_of(groups, item.key())] = true;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    if (used[g]) continue;
    throw ConfigError("FitOptions::group",
                      fmt::format("no parameter is left that matches \"{}\"; the first parameter is \"{}\"",
                                  groups[g].pattern, first));
  }
}

OwnOptimizerMaker own_optimizer_of(const FitOptions& options, const RunSpec& spec) {
  if (!options.optimizer() && options.groups().empty()) return {};
  if (options.optimizer() && !options.groups().empty()) {
    throw ConfigError(
        "FitOptions::group",
        "groups belong to the optimizer of the configuration; make the groups in the optimizer that "
        "FitOptions::optimizer() returns");
  }
  require_own_optimizer(spec);
  if (spec.optimizer.ema_decay > 0)
    throw ConfigError("optimizer.ema_decay",
                      "averaged weights belong to the optimizer of the configuration: leave the key out, or "
                      "leave out FitOptions::optimizer() and FitOptions::group()");
  if (options.optimizer()) {
    const bool sharded = parse_mesh(spec.train.mesh, spec.train.ranks).tensor > 1;
    return [make = options.optimizer(), sharded](const std::vector<NamedTensor>& parameters) {
      std::vector<at::Tensor> tensors;
      tensors.reserve(parameters.size());
      for (const NamedTensor& p : parameters) tensors.push_back(p.tensor);
      return checked(adapt_optimizer(make(std::move(tensors))), sharded);
    };
  }
  const bool decays =
      std::any_of(options.groups().begin(), options.groups().end(),
                  [](const ParameterGroup& g) { return g.settings.weight_decay.value_or(0) != 0; });
  if (updates_by_tensor(spec.optimizer) || (spec.optimizer.exempt_vectors && decays))
    throw ConfigError(
        "FitOptions::group",
        "libtorch's optimizers make the updates of groups, and they have no lars, no lamb and no "
        "optimizer.exempt_vectors: leave out the groups, or use another optimizer");
  return [groups = options.groups(), spec = spec.optimizer](const std::vector<NamedTensor>& parameters) {
    return adapt_optimizer(optimizer_of(spec, groups_of(groups, spec, parameters)));
  };
}

}  // namespace starling
