#include "starling/commands/comparison_theory.h"

#include <fmt/format.h>

#include <algorithm>

#include "starling/commands/plan_memory.h"
#include "starling/data/source_factory.h"
#include "starling/nn/layer_volumes.h"
#include "starling/spec/enum_words.h"

namespace starling {
namespace {

constexpr size_t kMostLayers = 64;

std::vector<LayerBytes> layers_of(const RunSpec& spec) {
  const SourceInfo info =
      open_data(spec.data, spec.train.seed, spec.model.tokens, security_named(spec.comm.security))
          .train->info();
  const ModelShape shape{info.input_shape, info.classes, info.text};
  std::vector<LayerBytes> layers;
  for (const LayerVolume& layer : layer_volumes(zoo_model(spec.model, shape), shape)) {
    if (layers.size() == kMostLayers) break;
    layers.push_back(
        {layer.name, 4.0 * static_cast<double>(layer.weights),
         4.0 * static_cast<double>(layer.inputs) * static_cast<double>(spec.train.global_batch)});
  }
  return layers;
}

// Returns a bar with the prediction for each way to shard among `ranks` ranks. If a run sharded in this way
// among as many ranks, a bar with the bytes that it counted follows.
std::vector<MemoryBar> memory_of(Config config, int64_t ranks, const Comparison& comparison,
                                 const std::vector<ComparedRun>& runs) {
  config.spec.train.ranks = ranks;
  config.spec.train.mesh.clear();
  config.origins["train.ranks"] = {OriginKind::kSet, "compare"};
  config.origins["data.source"] = {OriginKind::kSet, "compare"};
  const MemoryPlan plan = plan_memory(config, 0);
  std::vector<MemoryBar> bars;
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
    const std::string name = shard == Shard::kNone ? "no sharding" : "shard=" + to_string(shard);
    bars.push_back({fmt::format("{}, {} ranks", name, ranks), plan.states(shard), false});
    for (size_t i = 0; i < runs.size() && shard != Shard::kNone; ++i) {
      const RunSpec& spec = runs[i].config.spec;
      const auto& stats = comparison.runs[i].result.strategy;
      if (spec.train.shard != shard || spec.train.ranks != ranks || stats.count("held_bytes") == 0) continue;
      const auto number = [&stats](const char* key) {
        const auto it = stats.find(key);
        return it == stats.end() ? 0.0 : it->second;
      };
      bars.push_back(
          {name, {number("parameter_bytes"), number("gradient_bytes"), number("optimizer_bytes")}, true});
      break;
    }
  }
  return bars;
}

}  // namespace

void add_theory(Comparison& comparison, const Config& base, const std::vector<ComparedRun>& runs) {
  comparison.layers = layers_of(base.spec);
  int64_t ranks = 1;
  for (const ComparedRun& run : runs) ranks = std::max(ranks, run.config.spec.train.ranks);
  for (const ComparedRun& run : runs) {
    if (run.config.spec.train.shard != Shard::kNone) ranks = run.config.spec.train.ranks;
  }
  if (ranks > 1) comparison.memory = memory_of(base, ranks, comparison, runs);
}

}  // namespace starling
