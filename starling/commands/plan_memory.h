// `starling plan memory` computes the bytes of model states (parameters, gradients, optimizer states) that a
// rank would hold for each --shard, before anything runs. plan/memory.h has the formulas, and
// docs/explanation/zero.md explains them.
#pragma once

#include <string>
#include <vector>

#include "starling/plan/memory.h"
#include "starling/spec/config.h"
#include "starling/spec/mesh.h"

namespace starling {

// The inputs and results of a plan.
struct MemoryPlan {
  std::string what;       // the name of the model, or "a model" if it is not in the zoo
  double parameters = 0;  // parameters of the whole model
  // Parameters of each rank of the stage axis, after the division into stages and tensor parts. At least
  // one entry.
  std::vector<double> rank_parameters;
  MeshSpec mesh;
  Precision precision = Precision::kFp32;
  std::string optimizer;
  int optimizer_states = 0;
  ElementBytes element;
  Shard chosen = Shard::kNone;  // --shard
  int64_t parts = 1;            // in which a rank computes its samples of a step (train.accumulate)

  double largest_part() const;           // Ψ of the rank that holds most, before sharding
  StateBytes states(Shard shard) const;  // the model states of that rank
  // The bytes of the model states of all ranks together.
  double all_ranks(Shard shard) const;
  // Returns the bytes of gradients and parameters that this rank receives per step. Activations are not
  // included.
  double received_bytes(Shard shard) const;
};

// Makes the plan. If `params` is 0, the plan is for the configured model, whose stages are cut as the
// pipeline cuts them without measurements. Otherwise `params` is Ψ of a model outside the zoo, divided evenly
// over stages. The defaults of precision and optimizer are then bf16 and adam, as in Rajbhandari et al.,
// "ZeRO", SC 2020. Without train.ranks, the mesh gives the number of ranks. Nothing is trained. Errors:
// ConfigError for a mesh that does not fit, more stages than blocks, or `params` below 1.
MemoryPlan plan_memory(Config config, double params);

// Returns a table for people.
std::string to_text(const MemoryPlan& plan);
// Returns one JSON object per line: {"event":"memory_plan",…}, {"event":"memory","shard":…} for each --shard,
// and {"event":"result",…}.
std::string to_json(const MemoryPlan& plan);

}  // namespace starling
