#include "starling/commands/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "starling/base/error.h"
#include "starling/commands/end_of_list.h"
#include "starling/data/source_factory.h"
#include "starling/nn/blocks.h"
#include "starling/optim/update_rule.h"
#include "starling/plan/balance.h"
#include "starling/spec/enum_words.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr Shard kShards[] = {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters};

bool given(const Config& config, std::string_view key) {
  return is_given(config.origins, key);
}

// Returns the model's input and output shape: that of the data if data is configured, otherwise the shape for
// which the model is published.
ModelShape ends_of(const Config& config) {
  if (!given(config, "data.source")) return usual_shape(config.spec.model);
  const RunSpec& spec = config.spec;
  const SourceInfo info =
      open_data(spec.data, spec.train.seed, spec.model.tokens, security_named(spec.comm.security))
          .train->info();
  return {info.input_shape, info.classes, info.text};
}

double elements_of(const Model& model) {
  double sum = 0;
  for (const at::Tensor& p : model.module->parameters()) sum += static_cast<double>(p.numel());
  return sum;
}

// Returns the parameters that each rank of the stage axis holds, for the contiguous cut whose largest stage
// is smallest. A parameter that blocks of several ranks use counts on each of these ranks.
std::vector<double> cut_model(const Model& model, int ranks, int chunks) {
  std::map<std::string, double> sizes;
  for (const auto& item : model.module->named_parameters())
    sizes[item.key()] = static_cast<double>(item.value().numel());
  const std::vector<BlockTensors> blocks = tensors_of_blocks(model);
  std::vector<double> costs;
  for (const BlockTensors& block : blocks) {
    double cost = 1;
    for (const std::string& name : block.parameters) cost += sizes[name];
    costs.push_back(cost);
  }
  const std::vector<size_t> cut = balance_stages(costs, ranks * chunks);
  std::vector<std::set<std::string>> held(ranks);
  for (int stage = 0; stage < ranks * chunks; ++stage) {
    for (size_t b = cut[stage]; b < cut[stage + 1]; ++b)
      held[stage % ranks].insert(blocks[b].parameters.begin(), blocks[b].parameters.end());
  }
  std::vector<double> parameters;
  for (const auto& names : held) {
    double sum = 0;
    for (const std::string& name : names) sum += sizes[name];
    parameters.push_back(sum);
  }
  return parameters;
}

std::string bytes_in_words(double count) {
  return bytes_text(static_cast<uint64_t>(std::llround(count)));
}

std::string count_text(double parameters) {
  return parameters < 1e9 ? with_thousands(std::llround(parameters)) : fmt::format("{:.4g}", parameters);
}

std::string heading(const MemoryPlan& plan) {
  const MeshSpec& mesh = plan.mesh;
  std::string out = fmt::format("{}: {} parameters on replica={}, stage={}, tensor={} ({})\n", plan.what,
                                count_text(plan.parameters), mesh.replica, mesh.stage, mesh.tensor,
                                ranks_text(mesh.ranks()));
  out += fmt::format("{}, {}: {:g} bytes a parameter, {:g} its gradient, {:g} in the optimizer\n",
                     to_string(plan.precision), plan.optimizer, plan.element.parameter, plan.element.gradient,
                     plan.element.optimizer);
  if (mesh.stage * mesh.tensor > 1)
    out += fmt::format("the largest of the {} parts holds {} parameters\n", mesh.stage * mesh.tensor,
                       count_text(plan.largest_part()));
  return out + "\n";
}

}  // namespace

double MemoryPlan::largest_part() const {
  return *std::max_element(rank_parameters.begin(), rank_parameters.end());
}

StateBytes MemoryPlan::states(Shard shard) const {
  return zero_state_bytes(element, largest_part(), mesh.replica, static_cast<int>(shard));
}

double MemoryPlan::all_ranks(Shard shard) const {
  double sum = 0;
  for (const double part : rank_parameters)
    sum += zero_state_bytes(element, part, mesh.replica, static_cast<int>(shard)).total();
  return sum * static_cast<double>(mesh.replica * mesh.tensor);
}

double MemoryPlan::received_bytes(Shard shard) const {
  return zero_traffic_elements(largest_part(), mesh.replica, static_cast<int>(shard), parts) *
         element.parameter;
}

MemoryPlan plan_memory(Config config, double params) {
  RunSpec& spec = config.spec;
  if (params != 0) {
    if (!(params >= 1 && params <= 1e18)) throw ConfigError("--params", "must be a number from 1 to 1e18");
    if (!given(config, "train.precision")) spec.train.precision = Precision::kBf16;
    if (!given(config, "optimizer.name")) spec.optimizer.name = "adam";
  }
  if (!given(config, "train.ranks")) spec.train.ranks = ranks_named(spec.train.mesh);

  MemoryPlan plan;
  plan.mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  plan.precision = spec.train.precision;
  plan.optimizer = spec.optimizer.name;
  plan.optimizer_states = make_update_rule(spec.optimizer).state_count();
  plan.element = element_bytes(spec.train.precision, plan.optimizer_states);
  plan.chosen = spec.train.shard;
  plan.parts = spec.train.accumulate;
  const int stages = static_cast<int>(plan.mesh.stage);
  if (params != 0) {
    plan.what = "a model";
    plan.parameters = params;
    plan.rank_parameters.assign(stages, params / stages);
  } else {
    const Model model = zoo_model(spec.model, ends_of(config))();
    plan.what = spec.model.name;
    plan.parameters = elements_of(model);
    plan.rank_parameters = {plan.parameters};
    const int chunks = spec.pipeline.schedule == "interleaved" ? static_cast<int>(spec.pipeline.chunks) : 1;
    if (stages > 1) plan.rank_parameters = cut_model(model, stages, chunks);
  }
  for (double& part : plan.rank_parameters) part /= static_cast<double>(plan.mesh.tensor);
  return plan;
}

std::string to_text(const MemoryPlan& plan) {
  std::string out = heading(plan);
  out += fmt::format("{:<12} {:>11} {:>11} {:>11} {:>11} {:>11} {:>16}\n", "--shard", "parameters",
                     "gradients", "optimizer", "a rank", "all ranks", "received a step");
  for (const Shard shard : kShards) {
    const StateBytes held = plan.states(shard);
    out += fmt::format("{:<12} {:>11} {:>11} {:>11} {:>11} {:>11} {:>16}\n", to_string(shard),
                       bytes_in_words(held.parameters), bytes_in_words(held.gradients),
                       bytes_in_words(held.optimizer), bytes_in_words(held.total()),
                       bytes_in_words(plan.all_ranks(shard)), bytes_in_words(plan.received_bytes(shard)));
  }
  return out +
         "\nGB of 10^9 bytes; without activations, buckets on their way and gathered blocks. Received: "
         "gradients "
         "and\nparameters between replicas. docs/explanation/zero.md has the formulas.";
}

std::string to_json(const MemoryPlan& plan) {
  using Json = nlohmann::ordered_json;
  std::string lines = Json{{"event", "memory_plan"},
                           {"what", plan.what},
                           {"parameters", plan.parameters},
                           {"largest_part", plan.largest_part()},
                           {"replica", plan.mesh.replica},
                           {"stage", plan.mesh.stage},
                           {"tensor", plan.mesh.tensor},
                           {"precision", to_string(plan.precision)},
                           {"optimizer", plan.optimizer},
                           {"bytes_a_parameter", plan.element.parameter},
                           {"bytes_a_gradient", plan.element.gradient},
                           {"bytes_in_optimizer", plan.element.optimizer},
                           {"shard", to_string(plan.chosen)}}
                          .dump();
  for (const Shard shard : kShards) {
    const StateBytes held = plan.states(shard);
    lines += "\n" + Json{{"event", "memory"},
                         {"shard", to_string(shard)},
                         {"parameter_bytes", held.parameters},
                         {"gradient_bytes", held.gradients},
                         {"optimizer_bytes", held.optimizer},
                         {"bytes_a_rank", held.total()},
                         {"bytes_all_ranks", plan.all_ranks(shard)},
                         {"received_bytes_a_step", plan.received_bytes(shard)}}
                        .dump();
  }
  return lines + "\n" + end_of_list(1 + std::size(kShards));
}

}  // namespace starling
