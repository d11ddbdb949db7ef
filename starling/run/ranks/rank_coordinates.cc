#include "starling/run/ranks/rank_coordinates.h"

#include <fmt/format.h>

#include "starling/spec/mesh.h"

namespace starling {

std::string coordinate_of_rank(const RunSpec& spec, int rank) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  const MeshPlace place = place_of(mesh, rank);
  std::string text = fmt::format("replica={}", place.replica);
  if (mesh.stage > 1) text += fmt::format(",stage={}", place.stage);
  if (mesh.tensor > 1) text += fmt::format(",tensor={}", place.tensor);
  return text;
}

const at::Tensor* tensor_of_rank(const CheckpointState& checkpoint, const std::string& coordinate,
                                 const std::string& name) {
  const auto rank = checkpoint.ranks.find(coordinate);
  if (rank == checkpoint.ranks.end()) return nullptr;
  const auto tensor = rank->second.find(name);
  return tensor == rank->second.end() ? nullptr : &tensor->second;
}

bool has_tensor_of_every_rank(const RunSpec& spec, const CheckpointState& checkpoint,
                              const std::string& name) {
  int64_t ranks = 0;
  for (const auto& [coordinate, tensors] : checkpoint.ranks) ranks += tensors.contains(name) ? 1 : 0;
  if (ranks != spec.train.ranks) return false;
  for (int rank = 0; rank < spec.train.ranks; ++rank) {
    if (tensor_of_rank(checkpoint, coordinate_of_rank(spec, rank), name) == nullptr) return false;
  }
  return true;
}

}  // namespace starling
