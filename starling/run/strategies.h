// The strategies by name: the one place that turns a RunSpec into the algorithm that trains. A further one is a file in
// parallel/ and a line in make_strategy().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "starling/nn/model.h"
#include "starling/parallel/all_reduce.h"
#include "starling/parallel/built_strategy.h"
#include "starling/plan/pipeline_schedule.h"
#include "starling/run/choices.h"
#include "starling/run/mesh_groups.h"
#include "starling/run/surroundings.h"
#include "starling/spec/run_spec.h"
#include "starling/train/trainer.h"

namespace starling {

// What make_strategy() works with. Everything outlives the strategy.
struct StrategyParts {
  const RunSpec& spec;
  const Choices& choices;
  const ModelFactory& factory;
  int64_t total_steps = 0;
  const Surroundings& around;
  const MeshGroups& axes;
  std::function<void(int64_t, size_t, void*, size_t)> on_bucket;  // tests only, see AllReduceOptions
  std::vector<std::string> hybrid_layers = {};                    // model-parallel ones (train.hybrid)
};

// Reads the codecs' words. Errors: ConfigError for what is none.
void check_codecs(const RunSpec& spec);

// Whether the model is cut into stages.
bool is_pipeline(const RunSpec& spec);

// How the replicas of this run agree: exchange.name, "none" where there is one replica of several stages.
std::string exchange_of(const RunSpec& spec);

// The table that a pipeline of this spec runs. Errors: ConfigError naming file and line of one that cannot be read.
Schedule pipeline_schedule(const RunSpec& spec);

// Collective. Errors: ConfigError where the spec asks for what cannot be.
BuiltStrategy make_strategy(const StrategyParts& parts);

// The options of the all-reduce strategy that the spec and the choices come to.
AllReduceOptions all_reduce_options(const RunSpec& spec, const Choices& choices);

// What a server shard does in a job of the parameter server: answers its workers until all have left. Returns the exit status.
int serve(const RunSpec& spec, int shard, const Surroundings& around);

// `starling strategies`.
struct StrategyEntry {
  std::string name;
  std::string what;         // one line
  std::string fingerprint;  // what result.strategy tells
};
const std::vector<StrategyEntry>& strategies();

}  // namespace starling
