// `starling plan memory`: bytes of model states (parameters, gradients, optimizer states) that a rank would hold, for each
// --shard, before anything runs. The formulas are plan/memory.h; docs/zero.md explains them.
#pragma once

#include <string>
#include <vector>

#include "starling/plan/memory.h"
#include "starling/spec/config.h"
#include "starling/spec/mesh.h"

namespace starling {

struct MemoryPlan {
  std::string what;       // "gpt", or "7.5e+09 parameters"
  double parameters = 0;  // of the whole model
  std::vector<double>
      rank_parameters;  // of each rank of the stage axis, after stages and tensor parts are cut; at least one
  MeshSpec mesh;
  Precision precision = Precision::kFp32;
  std::string optimizer;
  int optimizer_states = 0;
  ElementBytes element;
  Shard chosen = Shard::kNone;  // --shard

  double largest_part() const;           // Ψ of the rank that holds most, before sharding
  StateBytes states(Shard shard) const;  // of that rank
  double all_ranks(Shard shard) const;
  double received_bytes(
      Shard shard) const;  // by that rank in a step, of gradients and parameters; without activations
};

// params: Ψ of a model that is none of the zoo's, cut evenly over stages; 0: the configured model's, whose stages are cut as
// the pipeline cuts them when nothing was measured. With params, precision is bf16 and the optimizer adam where they are not
// configured (the mixed precision of the paper). Without train.ranks the mesh says how many there are. Nothing is trained.
// Errors: ConfigError for a mesh that does not fit, more stages than blocks, or params below 1.
MemoryPlan plan_memory(Config config, double params);

std::string to_text(const MemoryPlan& plan);
// One object a line: {"event":"memory_plan",…}, then {"event":"memory","shard":…} for each --shard.
std::string to_json(const MemoryPlan& plan);

}  // namespace starling
