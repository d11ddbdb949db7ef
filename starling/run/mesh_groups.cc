#include "starling/run/mesh_groups.h"

#include <vector>

#include "starling/comm/bootstrap.h"

namespace starling {

MeshGroups::MeshGroups(const RunSpec& spec, const Surroundings& around)
    : around_(around),
      // Where ranks were lost there is the replica axis alone.
      mesh_(parse_mesh(around.group.size() < spec.train.ranks ? "" : spec.train.mesh, around.group.size())),
      place_(place_of(mesh_, around.group.rank())) {
  if (mesh_.replica < mesh_.ranks()) own_replicas_ = make_replica_group("replica");
  stages_ = mesh_.stage > 1 ? around.make_subgroup("stage", place_.stage_ranks) : make_single_group();
  tensors_ = mesh_.tensor > 1 ? around.make_subgroup("tensor", place_.tensor_ranks) : make_single_group();
  if (mesh_.tensor == 1) return;
  if (mesh_.stage > 1) models_ = around.make_subgroup("model", place_.model_ranks);
  std::vector<int> same_slice;
  for (int r = place_.tensor; r < mesh_.ranks(); r += static_cast<int>(mesh_.tensor)) same_slice.push_back(r);
  evaluators_ = around.make_subgroup("evaluation", same_slice);
}

std::unique_ptr<Group> MeshGroups::make_replica_group(const std::string& name) const {
  if (mesh_.replica == 1) return make_single_group();
  if (mesh_.replica == mesh_.ranks()) return around_.make_group(name);
  return around_.make_subgroup(name, place_.replica_ranks);
}

}  // namespace starling
