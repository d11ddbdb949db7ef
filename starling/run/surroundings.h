// What surrounds the training of one rank: made once by run/session.h, passed down by reference.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
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
  std::string run_dir;            // empty: nothing is kept
  // Parameter servers only: how workers and servers meet; store is null when the process is alone.
  Store* store = nullptr;
  Meeting meeting = {};
};

}  // namespace starling
