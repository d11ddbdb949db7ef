#include "starling/run/own_optimizer_maker.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "starling/base/error.h"
#include "starling/parallel/loop_strategy.h"
#include "starling/run/torch_optimizer.h"

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
  options->momentum(spec.momentum).weight_decay(weight_decay);
  return options;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const OptimizerSpec& spec,
                                                      std::vector<OptimizerParamGroup> groups) {
  if (spec.name == "adam") return std::make_unique<torch::optim::Adam>(std::move(groups));
  if (spec.name == "adamw") return std::make_unique<torch::optim::AdamW>(std::move(groups));
  if (spec.name == "adagrad") return std::make_unique<torch::optim::Adagrad>(std::move(groups));
  return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(spec.lr));
}

// Returns one group of libtorch's for each group of the options, and a last one for all other parameters.
std::vector<OptimizerParamGroup> groups_of(const std::vector<ParameterGroup>& groups,
                                           const OptimizerSpec& spec,
                                           const std::vector<NamedTensor>& parameters) {
  std::vector<std::vector<at::Tensor>> members(groups.size() + 1);
  for (const NamedTensor& p : parameters) {
    size_t g = 0;
    while (g < groups.size() && fnmatch(groups[g].pattern.c_str(), p.name.c_str(), 0) != 0) ++g;
    members[g].push_back(p.tensor);
  }
  std::vector<OptimizerParamGroup> result;
  for (size_t g = 0; g < members.size(); ++g) {
    const bool rest = g == groups.size();
    if (members[g].empty() && !rest) {
      throw ConfigError("FitOptions::group",
                        fmt::format("no parameter is left that matches \"{}\"; the first parameter is \"{}\"",
                                    groups[g].pattern, parameters.empty() ? "" : parameters.front().name));
    }
    if (members[g].empty()) continue;
    GroupSettings own;
    if (!rest) own = groups[g].settings;
    result.emplace_back(
        members[g], options_of(spec, own.lr.value_or(spec.lr), own.weight_decay.value_or(spec.weight_decay)));
  }
  return result;
}

}  // namespace

OwnOptimizerMaker own_optimizer_of(const FitOptions& options, const RunSpec& spec) {
  if (!options.optimizer() && options.groups().empty()) return {};
  if (options.optimizer() && !options.groups().empty()) {
    throw ConfigError(
        "FitOptions::group",
        "groups belong to the optimizer of the configuration; make the groups in the optimizer that "
        "FitOptions::optimizer() returns");
  }
  require_own_optimizer(spec);
  if (options.optimizer()) {
    return [make = options.optimizer()](const std::vector<NamedTensor>& parameters) {
      std::vector<at::Tensor> tensors;
      tensors.reserve(parameters.size());
      for (const NamedTensor& p : parameters) tensors.push_back(p.tensor);
      return adapt_optimizer(make(std::move(tensors)));
    };
  }
  return [groups = options.groups(), spec = spec.optimizer](const std::vector<NamedTensor>& parameters) {
    return adapt_optimizer(optimizer_of(spec, groups_of(groups, spec, parameters)));
  };
}

}  // namespace starling
