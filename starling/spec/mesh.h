// MeshSpec is the validated device mesh of a run: replica × stage × tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

struct MeshSpec {
  int64_t replica = 1;
  int64_t stage = 1;
  int64_t tensor = 1;
  int64_t ranks() const { return replica * stage * tensor; }
  bool operator==(const MeshSpec&) const = default;
};

// Parses "replica=2,stage=2". An axis that is not named has size 1. If the replica axis is not named, its
// size is `ranks` divided by the sizes of the other axes. Throws ConfigError ("train.mesh") if the text has
// another form, or if the product of the sizes is not `ranks`.
MeshSpec parse_mesh(const std::string& text, int64_t ranks);

// The coordinates of a rank. The tensor axis is the innermost and the replica axis the outermost, so the
// ranks of a replica are adjacent:
//
//   rank = (replica · S + stage) · T + tensor
//
// The lists hold ranks of the job in ascending order, including this rank.
struct MeshPlace {
  int replica = 0;
  int stage = 0;
  int tensor = 0;
  std::vector<int> replica_ranks;  // equal stage and tensor slice: the ranks hold the same parameters
  std::vector<int> stage_ranks;    // equal replica and tensor slice: the ranks form a pipeline
  std::vector<int> tensor_ranks;   // equal replica and stage: the layers are sharded over the ranks
  std::vector<int> model_ranks;    // equal replica: the ranks together hold one model
};

// Returns the coordinates of `rank`, which is in 0 … mesh.ranks() − 1.
MeshPlace place_of(const MeshSpec& mesh, int rank);

// Returns the product of the axes that `text` names, which is the smallest number of ranks for the mesh.
// Throws the errors of parse_mesh().
int64_t ranks_named(const std::string& text);

}  // namespace starling
