// RunEnvironment holds what the training of one rank needs from its process. Session (run/session.h) makes
// one for each generation of the group, and it is passed down by reference.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/group.h"
#include "starling/launch/local_cores.h"
#include "starling/net/store/store.h"
#include "starling/server/server_rendezvous.h"
#include "starling/telemetry/event.h"
#include "starling/train/process_services.h"

namespace starling {

struct RunEnvironment;

// What is kept of the run.
struct KeptRun {
  std::string folder;         // the run folder; empty if nothing is kept
  ResumeHint resume = {};     // what an interrupted run tells the user, if its state is saved
  std::string incarnation{};  // names this start of the run, equal on all ranks; empty if nothing is kept
  // The lock on the run folder (job/folder_lock.h). lock_epoch() returns its epoch, or 0 on a rank that
  // does not hold it. require_lock() throws the errors of LeadersLock::require(). note_continued() tells the
  // run which checkpoint it continues. All are empty if there is no run around the training.
  std::function<int64_t()> lock_epoch = {};
  std::function<void()> require_lock = {};
  std::function<void(const std::string& checkpoint)> note_continued = {};
};

// How this rank goes on after ranks were lost. The functions are empty if there is no run around the
// training, as in a test.
struct RunMembership {
  // The ranks of the group in the numbering that the run began with. Empty means 0 … size - 1.
  std::vector<int> ranks = {};
  // Returns true if this rank reports the run's progress, result and records. Empty: rank 0 of the group
  // does.
  std::function<bool()> is_leader = {};
  // Makes this rank the one that reports. Returns false if it reported before.
  std::function<bool()> lead = {};
  // Recovers from a loss. Call it after everything made from the environment has been destroyed. The function
  // agrees with the other survivors on the new membership (comm/membership.h) and makes their group. It
  // rethrows the error if no rank is lost.
  std::function<RunEnvironment(const CommError&)> regroup = {};
};

// The environment of one rank's training. The objects that it refers to outlive everything that holds it.
struct RunEnvironment {
  // All ranks of the run.
  Group& group;
  // Makes a further group with its own order of operations, as synchronized batch norm or an axis of the mesh
  // (spec/mesh.h) needs. `ranks` is ascending and contains this rank; empty means all ranks. Collective over
  // `ranks`. Disjoint groups may use one name at the same time.
  std::function<std::unique_ptr<Group>(const std::string& name, const std::vector<int>& ranks)> make_group;
  ProcessServices process;
  KeptRun kept = {};
  RunMembership membership = {};
  // The store of the job. Null if the process is alone, and if MPI connects the ranks and there are no
  // servers.
  Store* store = nullptr;
  // How workers and parameter servers find each other.
  ServerRendezvous rendezvous = {};
  LocalCores local_cores = {};  // of rank 0's host; set on rank 0 only

  // This rank in the numbering that the run began with.
  int world_rank() const {
    return membership.ranks.empty() ? group.rank() : membership.ranks[static_cast<size_t>(group.rank())];
  }
  // True if this rank reports the run's progress, result and records.
  bool leads() const { return membership.is_leader ? membership.is_leader() : group.rank() == 0; }
};

}  // namespace starling
