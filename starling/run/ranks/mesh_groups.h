// MeshGroups holds this rank's place in the device mesh and the groups of its axes.
#pragma once

#include <memory>
#include <string>

#include "starling/comm/group.h"
#include "starling/run/run_environment.h"
#include "starling/spec/mesh.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The groups of one rank. Their operations follow the rules of Group.
class MeshGroups {
 public:
  // Makes the groups. Collective over all ranks. `environment` must outlive this object. Objects that exist
  // at the same time need different prefixes of their groups' names.
  MeshGroups(const RunSpec& spec, const RunEnvironment& environment, std::string prefix = "");

  // The device mesh.
  const MeshSpec& mesh() const { return mesh_; }
  // This rank's coordinates in the mesh.
  const MeshPlace& place() const { return place_; }
  // The ranks that hold the same parameters, one in each replica. The exchange runs over this group. All
  // ranks if the replica axis is the only one.
  Group& replicas() const { return own_replicas_ ? *own_replicas_ : environment_.group; }
  // The pipeline of which this rank is a stage. A group of one rank if there are no stages.
  Group& stages() const { return *stages_; }
  // The ranks that shard the layers of a replica, or of one of its stages. A group of one rank without a
  // tensor axis.
  Group& tensors() const { return *tensors_; }
  // The ranks that together hold one replica. Only valid if the mesh has a stage axis and a tensor axis.
  Group& models() const { return *models_; }
  // The ranks that divide the samples of an evaluation. Ranks of one tensor axis are in different groups,
  // because they must see equal samples.
  Group& evaluators() const { return evaluators_ ? *evaluators_ : environment_.group; }
  // The ranks of which one pushes to the parameter servers for all (exchange.team). Null without teams.
  Group* team() const { return team_.get(); }
  // Makes a further group of the ranks of replicas(), with its own order of operations. Collective over these
  // ranks.
  std::unique_ptr<Group> make_replica_group(const std::string& name) const;

 private:
  std::unique_ptr<Group> alone() const;

  const RunEnvironment& environment_;
  const std::string prefix_;
  MeshSpec mesh_;
  MeshPlace place_;
  std::unique_ptr<Group> own_replicas_, stages_, tensors_, models_, evaluators_, team_;
};

}  // namespace starling
