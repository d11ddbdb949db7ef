// Composes the strategy of a run. The exchange is made by name (exchange_makers.h), inside stages,
// tensor-parallel layers or a hybrid. Only this file turns a RunSpec into the algorithm that trains.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/tensor_plan.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/strategy.h"
#include "starling/plan/pipeline_schedule.h"
#include "starling/run/choice/choices.h"
#include "starling/run/ranks/mesh_groups.h"
#include "starling/run/run_environment.h"
#include "starling/spec/run_spec.h"
#include "starling/train/trainer.h"

namespace starling {

// What the user's program decides itself.
struct ProgramParts {
  OwnOptimizerMaker optimizer = {};    // empty: the optimizer of the configuration
  TensorPlan tensor_plan = {};         // empty: layers are sharded by their own rules
  std::function<Batch()> sample = {};  // reads samples on which the plan is checked
};

// The inputs of make_strategy(). Everything that they refer to must outlive the strategy.
struct StrategyParts {
  const RunSpec& spec;
  const Choices& choices;
  const ModelFactory& factory;
  int64_t total_steps = 0;
  const RunEnvironment& environment;
  const MeshGroups& axes;
  OnBucket on_bucket;                           // tests only
  std::vector<std::string> hybrid_layers = {};  // names of the model-parallel layers (train.hybrid)
  Batch held_out = {};                          // own_samples(): this rank's samples on which nobody trains
  ProgramParts program = {};
};

// Parses the names of the spec's codecs. Errors: ConfigError if a name is not a codec.
void check_codecs(const RunSpec& spec);

// Returns the name of the exchange between the replicas, which is exchange.name. Returns "none" if there is
// no server and only one replica of several ranks (or layers per core).
std::string exchange_of(const RunSpec& spec);

// Returns the schedule of a pipeline. Errors: ConfigError that names the file and line of a schedule that
// cannot be read. Also ConfigError if a file has another number of micro-batches than the spec.
Schedule pipeline_schedule(const RunSpec& spec);

// Makes the strategy of the run. Collective. Errors: ConfigError if the spec's settings contradict each other
// or the model.
std::unique_ptr<Strategy> make_strategy(const StrategyParts& parts);

// Returns the options that all exchanges of the run share, for whole models.
FlatReplicaOptions replica_options(const RunSpec& spec, const Choices& choices);

// Runs server shard `shard` of a parameter server: it answers its workers until all of them have left. The
// workers tell it the optimizer and the type of numbers. If they train in a loop of their own, it serves each
// of the models that they train, all at the same time. Returns the exit status of the process.
int serve(const RunSpec& spec, int shard, const RunEnvironment& environment);

}  // namespace starling
