// The strategies by name: the one place that turns a RunSpec into the algorithm that trains. A further one is a file in
// parallel/ and a line in make_strategy().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "starling/nn/model.h"
#include "starling/parallel/all_reduce.h"
#include "starling/report/timeline.h"
#include "starling/run/choices.h"
#include "starling/run/surroundings.h"
#include "starling/spec/run_spec.h"
#include "starling/train/trainer.h"

namespace starling {

// A strategy and what the run needs beside its six methods.
struct BuiltStrategy {
  std::unique_ptr<Strategy> strategy;
  Replica* evaluated = nullptr;  // shows the agreed model after strategy->consensus()
  std::function<std::map<std::string, double>()> fingerprint;  // collective
  std::function<StepTimeline()>
      timeline;  // collective; of the last step, complete on rank 0; empty: no pipeline
};

// What make_strategy() works with. Everything outlives the strategy.
struct StrategyParts {
  const RunSpec& spec;
  const Choices& choices;
  const ModelFactory& factory;
  int64_t total_steps = 0;
  const Surroundings& around;
  std::function<void(int64_t, size_t, void*, size_t)> on_bucket;  // tests only, see AllReduceOptions
};

// Whether the model is cut into stages: then every rank reads the whole global batch.
bool is_pipeline(const RunSpec& spec);

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
