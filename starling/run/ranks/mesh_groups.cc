#include "starling/run/ranks/mesh_groups.h"

#include <numeric>
#include <utility>
#include <vector>

#include "starling/comm/bootstrap.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

// Returns the ranks of the team of `rank`, in ascending order.
std::vector<int> team_ranks(int rank, int64_t size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), rank / static_cast<int>(size) * static_cast<int>(size));
  return ranks;
}

}  // namespace

MeshGroups::MeshGroups(const RunSpec& spec, const RunEnvironment& environment, std::string prefix)
    : environment_(environment),
      prefix_(std::move(prefix)),
      // After a loss, only the replica axis is left.
      mesh_(parse_mesh(environment.group.size() < spec.train.ranks ? "" : spec.train.mesh,
                       environment.group.size())),
      place_(place_of(mesh_, environment.group.rank())) {
  if (mesh_.replica < mesh_.ranks()) own_replicas_ = make_replica_group("replica");
  stages_ = mesh_.stage > 1 ? environment.make_group(prefix_ + "stage", place_.stage_ranks) : alone();
  tensors_ = mesh_.tensor > 1 ? environment.make_group(prefix_ + "tensor", place_.tensor_ranks) : alone();
  if (exchange_traits(spec).reads("team") && spec.exchange.team > 1)
    team_ =
        environment.make_group(prefix_ + "team", team_ranks(environment.group.rank(), spec.exchange.team));
  if (mesh_.tensor == 1) return;
  if (mesh_.stage > 1) models_ = environment.make_group(prefix_ + "model", place_.model_ranks);
  std::vector<int> same_slice;
  for (int r = place_.tensor; r < mesh_.ranks(); r += static_cast<int>(mesh_.tensor)) same_slice.push_back(r);
  evaluators_ = environment.make_group(prefix_ + "evaluation", same_slice);
}

std::unique_ptr<Group> MeshGroups::alone() const {
  return make_single_group({}, environment_.world_rank());
}

std::unique_ptr<Group> MeshGroups::make_replica_group(const std::string& name) const {
  if (mesh_.replica == 1) return alone();
  if (mesh_.replica == mesh_.ranks()) return environment_.make_group(prefix_ + name, {});
  return environment_.make_group(prefix_ + name, place_.replica_ranks);
}

}  // namespace starling
