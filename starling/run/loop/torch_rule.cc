#include "starling/run/loop/torch_rule.h"

#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <string>
#include <typeinfo>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

namespace optim = torch::optim;

using Numbers = std::vector<double>;
using States = std::vector<at::Tensor>;
using Optimizer = std::unique_ptr<optim::Optimizer>;

// One class of optimizers: how its options and the states of a parameter are read and written.
struct TorchKind {
  const char* name;
  const std::type_info* type;
  size_t numbers;  // of a group
  Numbers (*numbers_of)(const optim::OptimizerOptions& options);
  std::vector<std::string> (*states_of)(const Numbers& numbers);
  Optimizer (*make)(const Numbers& numbers, const at::Tensor& parameter);
  // Returns the state of a parameter before update `step`, on the memory of `states`. Null: none.
  std::unique_ptr<optim::OptimizerParamState> (*before)(const Numbers& numbers, const States& states,
                                                        int64_t step);
  // Returns the tensors of the state, in the order of `states`.
  States (*after)(const Numbers& numbers, optim::OptimizerParamState& state);
};

bool flag(double number) {
  return number != 0;
}

Numbers sgd_numbers(const optim::OptimizerOptions& options) {
  const auto& o = dynamic_cast<const optim::SGDOptions&>(options);
  return {o.lr(), o.momentum(), o.weight_decay(), o.dampening(), static_cast<double>(o.nesterov())};
}
std::vector<std::string> sgd_states(const Numbers& n) {
  return flag(n[1]) ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}
Optimizer make_sgd(const Numbers& n, const at::Tensor& parameter) {
  return std::make_unique<optim::SGD>(
      std::vector<at::Tensor>{parameter},
      optim::SGDOptions(n[0]).momentum(n[1]).weight_decay(n[2]).dampening(n[3]).nesterov(flag(n[4])));
}
// The first update takes the gradient as the momentum, without dampening.
std::unique_ptr<optim::OptimizerParamState> before_sgd(const Numbers& n, const States& states, int64_t step) {
  if (!flag(n[1]) || step == 1) return nullptr;
  auto state = std::make_unique<optim::SGDParamState>();
  state->momentum_buffer(states[0]);
  return state;
}
States after_sgd(const Numbers& n, optim::OptimizerParamState& state) {
  return flag(n[1]) ? States{dynamic_cast<optim::SGDParamState&>(state).momentum_buffer()} : States{};
}

template <typename Options>
Numbers adam_numbers(const optim::OptimizerOptions& options) {
  const auto& o = dynamic_cast<const Options&>(options);
  const auto [beta1, beta2] = o.betas();
  return {o.lr(), beta1, beta2, o.eps(), o.weight_decay(), static_cast<double>(o.amsgrad())};
}
std::vector<std::string> adam_states(const Numbers& n) {
  std::vector<std::string> names = {"exp_avg", "exp_avg_sq"};
  if (flag(n[5])) names.emplace_back("max_exp_avg_sq");
  return names;
}
template <typename Class, typename Options>
Optimizer make_adam(const Numbers& n, const at::Tensor& parameter) {
  Options options(n[0]);
  options.betas({n[1], n[2]}).eps(n[3]).weight_decay(n[4]).amsgrad(flag(n[5]));
  return std::make_unique<Class>(std::vector<at::Tensor>{parameter}, options);
}
template <typename State>
std::unique_ptr<optim::OptimizerParamState> before_adam(const Numbers& n, const States& states,
                                                        int64_t step) {
  auto state = std::make_unique<State>();
  state->step(step - 1);
  state->exp_avg(states[0]);
  state->exp_avg_sq(states[1]);
  if (flag(n[5])) state->max_exp_avg_sq(states[2]);
  return state;
}
template <typename State>
States after_adam(const Numbers& n, optim::OptimizerParamState& state) {
  const auto& s = dynamic_cast<const State&>(state);
  return flag(n[5]) ? States{s.exp_avg(), s.exp_avg_sq(), s.max_exp_avg_sq()}
                    : States{s.exp_avg(), s.exp_avg_sq()};
}

Numbers adagrad_numbers(const optim::OptimizerOptions& options) {
  const auto& o = dynamic_cast<const optim::AdagradOptions&>(options);
  return {o.lr(), o.lr_decay(), o.weight_decay(), o.initial_accumulator_value(), o.eps()};
}
std::vector<std::string> adagrad_states(const Numbers&) {
  return {"sum"};
}
Optimizer make_adagrad(const Numbers& n, const at::Tensor& parameter) {
  return std::make_unique<optim::Adagrad>(
      std::vector<at::Tensor>{parameter},
      optim::AdagradOptions(n[0]).lr_decay(n[1]).weight_decay(n[2]).initial_accumulator_value(n[3]).eps(
          n[4]));
}
std::unique_ptr<optim::OptimizerParamState> before_adagrad(const Numbers& n, const States& states,
                                                           int64_t step) {
  if (step == 1) states[0].fill_(n[3]);
  auto state = std::make_unique<optim::AdagradParamState>();
  state->step(step - 1);
  state->sum(states[0]);
  return state;
}
States after_adagrad(const Numbers&, optim::OptimizerParamState& state) {
  return {dynamic_cast<optim::AdagradParamState&>(state).sum()};
}

Numbers rmsprop_numbers(const optim::OptimizerOptions& options) {
  const auto& o = dynamic_cast<const optim::RMSpropOptions&>(options);
  return {o.lr(), o.alpha(), o.eps(), o.weight_decay(), o.momentum(), static_cast<double>(o.centered())};
}
std::vector<std::string> rmsprop_states(const Numbers& n) {
  std::vector<std::string> names = {"square_avg"};
  if (flag(n[4])) names.emplace_back("momentum_buffer");
  if (flag(n[5])) names.emplace_back("grad_avg");
  return names;
}
Optimizer make_rmsprop(const Numbers& n, const at::Tensor& parameter) {
  return std::make_unique<optim::RMSprop>(
      std::vector<at::Tensor>{parameter},
      optim::RMSpropOptions(n[0]).alpha(n[1]).eps(n[2]).weight_decay(n[3]).momentum(n[4]).centered(
          flag(n[5])));
}
std::unique_ptr<optim::OptimizerParamState> before_rmsprop(const Numbers& n, const States& states,
                                                           int64_t step) {
  auto state = std::make_unique<optim::RMSpropParamState>();
  state->step(step - 1);
  state->square_avg(states[0]);
  if (flag(n[4])) state->momentum_buffer(states[1]);
  if (flag(n[5])) state->grad_avg(states.back());
  return state;
}
States after_rmsprop(const Numbers& n, optim::OptimizerParamState& state) {
  const auto& s = dynamic_cast<const optim::RMSpropParamState&>(state);
  States states = {s.square_avg()};
  if (flag(n[4])) states.push_back(s.momentum_buffer());
  if (flag(n[5])) states.push_back(s.grad_avg());
  return states;
}

const std::vector<TorchKind>& torch_kinds() {
  static const std::vector<TorchKind> kinds = {
      {"sgd", &typeid(optim::SGD), 5, sgd_numbers, sgd_states, make_sgd, before_sgd, after_sgd},
      {"adam", &typeid(optim::Adam), 6, adam_numbers<optim::AdamOptions>, adam_states,
       make_adam<optim::Adam, optim::AdamOptions>, before_adam<optim::AdamParamState>,
       after_adam<optim::AdamParamState>},
      {"adamw", &typeid(optim::AdamW), 6, adam_numbers<optim::AdamWOptions>, adam_states,
       make_adam<optim::AdamW, optim::AdamWOptions>, before_adam<optim::AdamWParamState>,
       after_adam<optim::AdamWParamState>},
      {"adagrad", &typeid(optim::Adagrad), 5, adagrad_numbers, adagrad_states, make_adagrad, before_adagrad,
       after_adagrad},
      {"rmsprop", &typeid(optim::RMSprop), 6, rmsprop_numbers, rmsprop_states, make_rmsprop, before_rmsprop,
       after_rmsprop}};
  return kinds;
}

// Returns the names of the states of all groups, each once.
std::vector<std::string> states_of_groups(const TorchKind& kind, const std::vector<Numbers>& groups) {
  std::vector<std::string> names;
  for (const Numbers& numbers : groups) {
    for (const std::string& name : kind.states_of(numbers)) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

class TorchRule final : public PartitionRule {
 public:
  TorchRule(const TorchKind& kind, TorchSettings settings, at::ScalarType type)
      : kind_(kind),
        settings_(std::move(settings)),
        type_(type),
        names_(states_of_groups(kind, settings_.groups)),
        partitions_(settings_.group_of.size()) {}

  int state_count() const override { return static_cast<int>(names_.size()); }

  void apply(const PartitionUpdate& update) override {
    const at::NoGradGuard no_grad;
    const auto group = static_cast<size_t>(settings_.group_of.at(update.partition));
    const Numbers& numbers = settings_.groups.at(group);
    TorchPartition& partition = partitions_.at(update.partition);
    if (!partition.optimizer) begin(partition, numbers, update);
    // A scheduler of the program changes the rates of all groups by one factor.
    const double base = settings_.groups.front().front();
    const double rate = group == 0 ? update.lr : update.lr * numbers.front() / base;
    partition.optimizer->param_groups().front().options().set_lr(rate);
    partition.parameter.mutable_grad() = on(update.gradient, update.count);
    auto& states = partition.optimizer->state();
    const auto key = partition.parameter.unsafeGetTensorImpl();
    states.erase(key);
    if (auto state = kind_.before(numbers, partition.states, update.step)) states[key] = std::move(state);
    partition.optimizer->step();
    if (const auto state = states.find(key); state != states.end())
      keep(kind_.after(numbers, *state->second), partition);
    partition.parameter.mutable_grad().reset();
  }

 private:
  // A partition as the optimizer sees it.
  struct TorchPartition {
    at::Tensor parameter;
    States states;  // those of the partition's group, in the memory of the shard
    Optimizer optimizer;
  };

  at::Tensor on(void* data, size_t count) const {
    return at::from_blob(data, {static_cast<int64_t>(count)}, at::TensorOptions(type_));
  }

  void begin(TorchPartition& partition, const Numbers& numbers, const PartitionUpdate& update) {
    partition.parameter = on(update.parameter, update.count).set_requires_grad(true);
    for (const std::string& name : kind_.states_of(numbers)) {
      const auto place = std::find(names_.begin(), names_.end(), name) - names_.begin();
      partition.states.push_back(on(update.states[place], update.count));
    }
    partition.optimizer = kind_.make(numbers, partition.parameter);
  }

  // Copies states that the optimizer has made anew into the memory of the shard.
  static void keep(const States& states, TorchPartition& partition) {
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].const_data_ptr() != partition.states[i].const_data_ptr())
        partition.states[i].copy_(states[i]);
    }
  }

  const TorchKind& kind_;
  const TorchSettings settings_;
  const at::ScalarType type_;
  const std::vector<std::string> names_;
  std::vector<TorchPartition> partitions_;
};

}  // namespace

bool is_known_optimizer(const optim::Optimizer& optimizer) {
  const auto is = [&](const TorchKind& kind) { return typeid(optimizer) == *kind.type; };
  return std::any_of(torch_kinds().begin(), torch_kinds().end(), is);
}

std::optional<TorchSettings> torch_settings(const optim::Optimizer& optimizer,
                                            const std::vector<NamedTensor>& parameters) {
  for (const TorchKind& kind : torch_kinds()) {
    if (typeid(optimizer) != *kind.type) continue;
    TorchSettings settings;
    settings.name = kind.name;
    std::map<const c10::TensorImpl*, int> group_of;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& p : group.params())
        group_of[p.unsafeGetTensorImpl()] = static_cast<int>(settings.groups.size());
      settings.groups.push_back(kind.numbers_of(group.options()));
    }
    // The rates of the groups are sent as one.
    if (settings.groups.size() > 1 && settings.groups.front().front() == 0) return std::nullopt;
    settings.state_names = states_of_groups(kind, settings.groups);
    settings.group_of.reserve(parameters.size());
    for (const NamedTensor& p : parameters) {
      const auto group = group_of.find(p.tensor.unsafeGetTensorImpl());
      if (group == group_of.end()) {
        throw ConfigError(
            "exchange.name",
            fmt::format("servers update every parameter, and the program's optimizer does not hold "
                        "{}; freeze it by requires_grad_(false), or use --exchange all-reduce",
                        p.name));
      }
      settings.group_of.push_back(group->second);
    }
    return settings;
  }
  return std::nullopt;
}

std::unique_ptr<PartitionRule> make_torch_rule(const TorchSettings& settings, DataType type) {
  for (const TorchKind& kind : torch_kinds()) {
    if (settings.name != kind.name) continue;
    const auto groups = static_cast<int>(settings.groups.size());
    const auto fits = [&](const Numbers& numbers) { return numbers.size() == kind.numbers; };
    const auto known = [&](int group) { return group >= 0 && group < groups; };
    if (!std::all_of(settings.groups.begin(), settings.groups.end(), fits) ||
        !std::all_of(settings.group_of.begin(), settings.group_of.end(), known))
      break;
    return std::make_unique<TorchRule>(kind, settings, type == DataType::kFp64 ? at::kDouble : at::kFloat);
  }
  throw CommError(
      fmt::format("a worker announced an optimizer '{}' with options that it does not have", settings.name));
}

}  // namespace starling
