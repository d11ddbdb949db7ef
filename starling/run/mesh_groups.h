// MeshGroups: this rank's place in the mesh, and the groups of its axes.
#pragma once

#include <memory>

#include "starling/comm/group.h"
#include "starling/run/surroundings.h"
#include "starling/spec/mesh.h"
#include "starling/spec/run_spec.h"

namespace starling {

class MeshGroups {
 public:
  // Collective over all ranks. around outlives this.
  MeshGroups(const RunSpec& spec, const Surroundings& around);

  const MeshSpec& mesh() const { return mesh_; }
  const MeshPlace& place() const { return place_; }
  // The ranks that hold the same parameters, one a replica: over these replicas agree. All ranks where replica is the only axis.
  Group& replicas() const { return own_replicas_ ? *own_replicas_ : around_.group; }
  // The pipeline that this rank is a stage of. Of one rank where there are no stages.
  Group& stages() const { return *stages_; }
  // A further group of the ranks of replicas(), with its own order of operations. Collective over these.
  std::unique_ptr<Group> make_replica_group(const std::string& name) const;

 private:
  const Surroundings& around_;
  MeshSpec mesh_;
  MeshPlace place_;
  std::unique_ptr<Group> own_replicas_, stages_;
};

}  // namespace starling
