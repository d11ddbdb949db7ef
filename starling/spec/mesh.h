// The mesh of ranks as one validated value: replica × stage × tensor.
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

// "replica=2,stage=2"; axes that are not named are 1, but the replica axis, when it is not named, takes what the other axes
// leave of `ranks`. Empty: replica = ranks. Errors: ConfigError ("train.mesh") that shows the form, or where the axes do not
// multiply to `ranks`.
MeshSpec parse_mesh(const std::string& text, int64_t ranks);

// Where a rank stands: tensor is the innermost axis, replica the outermost, so that the ranks of one replica are neighbours:
//
//   rank = (replica · S + stage) · T + tensor
//
// The lists hold ranks of the job, ascending, this one among them.
struct MeshPlace {
  int replica = 0;
  int stage = 0;
  int tensor = 0;
  std::vector<int> replica_ranks;  // same stage and tensor slice: they hold the same parameters
  std::vector<int> stage_ranks;    // same replica and tensor slice: a pipeline
  std::vector<int> tensor_ranks;   // same replica and stage: they divide its layers
  std::vector<int> model_ranks;    // same replica: they hold one model between them
};

// rank: 0 … mesh.ranks() − 1.
MeshPlace place_of(const MeshSpec& mesh, int rank);

// The product of the axes that `text` names, 1 for none: the fewest ranks that it can be. Errors: those of parse_mesh.
int64_t ranks_named(const std::string& text);

}  // namespace starling
