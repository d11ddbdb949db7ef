// ServerTeam makes a tree of parameter servers: the ranks of a team add up their gradients, and only one of
// them pushes and pulls. The servers then get one push of each team instead of one of each rank.
//
// Let p ranks form teams of k, with S servers, and let each team be the ranks of one host. The pushes of a
// synchronous step then take this time between hosts.
//
//   with teams:     |W| (p / k) / (S · bandwidth).
//   without teams:  |W| p / (S · bandwidth).
//
// Source: FireCaffe (Iandola et al., CVPR 2016) describes servers that form a tree.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "starling/comm/group.h"
#include "starling/server/client.h"

namespace starling {

// One rank of a team. Its calls are collective over the team. Not thread-safe. Errors: those of the group.
class ServerTeam {
 public:
  // `group` has the ranks of the team, and its rank 0 leads. Null: this rank is a team of its own. The group
  // must outlive this object.
  explicit ServerTeam(Group* group) : group_(group) {}

  // True on the rank that pushes and pulls for the team.
  bool leads() const { return group_ == nullptr || group_->rank() == 0; }
  // Replaces `gradient` and `notes` by those of the whole team. The gradient and the loss are means over the
  // samples (PushNotes::weight). The weight is the sum of the weights. `notes.stop` says whether some rank
  // asks to stop. `gradient` is a contiguous tensor of fp32 or fp64.
  void gather(at::Tensor& gradient, PushNotes& notes) const;
  // Gives each rank what the leader has pulled.
  void share(at::Tensor& parameters, PullReport& report) const;
  // Returns the bytes that this rank has sent to its team so far. The group of the run does not count them.
  uint64_t sent() const { return group_ == nullptr ? 0 : group_->traffic().sent(); }

 private:
  Group* group_;
};

}  // namespace starling
