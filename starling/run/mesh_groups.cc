#include "starling/run/mesh_groups.h"

#include "starling/comm/bootstrap.h"

namespace starling {

MeshGroups::MeshGroups(const RunSpec& spec, const Surroundings& around)
    : around_(around),
      mesh_(parse_mesh(spec.train.mesh, around.group.size())),
      place_(place_of(mesh_, around.group.rank())) {
  if (mesh_.replica < mesh_.ranks()) own_replicas_ = make_replica_group("replica");
  stages_ = mesh_.stage > 1 ? around.make_subgroup("stage", place_.stage_ranks) : make_single_group();
}

std::unique_ptr<Group> MeshGroups::make_replica_group(const std::string& name) const {
  if (mesh_.replica == 1) return make_single_group();
  if (mesh_.replica == mesh_.ranks()) return around_.make_group(name);
  return around_.make_subgroup(name, place_.replica_ranks);
}

}  // namespace starling
