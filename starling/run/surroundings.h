// What surrounds the training of one rank: made once by run/session.h, passed down by reference.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/comm/group.h"
#include "starling/net/store.h"
#include "starling/server/meeting.h"
#include "starling/telemetry/sink.h"

namespace starling {

// Everything outlives whoever holds it.
struct Surroundings {
  Group& group;
  // A further group of the same ranks with its own order of operations (synced batch norm). Collective.
  std::function<std::unique_ptr<Group>(const std::string& name)> make_group;
  // A group of some of these ranks, ascending, this one among them: an axis of the mesh (spec/mesh.h). Collective over those;
  // disjoint subsets may use one name at the same time.
  std::function<std::unique_ptr<Group>(const std::string& name, const std::vector<int>& ranks)> make_subgroup;
  EventSink& sink;  // this rank's; ranks other than 0 give a silent one
  const Clock& clock;
  const std::atomic<bool>& stop;  // set by SIGTERM and Ctrl-C
  std::string run_dir;            // empty: nothing is kept (or another rank keeps it)
  // Parameter servers only: how workers and servers meet; store is null when the process is alone.
  Store* store = nullptr;
  Meeting meeting = {};
  // Where ranks may be lost: whether this one speaks for the run now, and: it does from now on, so that progress, result and
  // the run's records go out of here (false if it did before). Empty: it is the group's rank 0.
  std::function<bool()> is_leader = {};
  std::function<bool()> lead = {};

  // The ranks of `group` as the run numbered them when it began; empty: 0 … size - 1.
  std::vector<int> members = {};
  // After a loss, when nothing that was made of this is left: agrees with the other survivors on who they are (members.h) and
  // makes their group. The error itself where nobody is lost. Empty: the run cannot go on.
  std::function<Surroundings(const CommError&)> regroup = {};

  int world_rank() const {
    return members.empty() ? group.rank() : members[static_cast<size_t>(group.rank())];
  }
  bool leads() const { return is_leader ? is_leader() : group.rank() == 0; }
};

}  // namespace starling
