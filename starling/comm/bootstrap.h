// Making a group: the ranks find each other through a Store, those of one host meet in shared memory, hosts over TCP.
//
//   starling::GroupSetup setup;
//   setup.rank = rank;
//   setup.size = size;
//   setup.connect = …;  // only where the ranks are on several hosts (mesh.h)
//   std::unique_ptr<starling::Group> group = starling::make_group(store, setup);
//
// A process that runs alone: make_single_group(). Everything below is an argument; nothing is read from the environment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/comm/flags.h"
#include "starling/comm/group.h"
#include "starling/comm/mesh.h"
#include "starling/net/store.h"

namespace starling {

struct GroupSetup {
  int rank = 0;
  int size = 1;
  // Distinguishes the groups of a job: the same on all ranks of the group, used once a generation.
  std::string name = "world";
  int64_t generation = 0;
  // The rank in the job of each rank of the group, for messages of the store about lost ranks. Empty: they are equal.
  std::vector<int> world_ranks;
  GroupOptions options;
  // Ranks whose host_id is equal share memory. Empty: this_host_id().
  std::string host_id;
  // For messages. Empty: the machine's name.
  std::string host_name;
  // The NUMA node of this rank; by default that of the processors to which it is bound, -1: none (numa.h).
  std::optional<int> numa_node;
  // How ranks of one host wait for each other; by default WaitPolicy::for_ranks.
  std::optional<WaitPolicy> waiting;
  // Connects ranks that do not share memory. Empty: all ranks must be of one host.
  Connector connect;
};

// Collective over the ranks of the group. Returns when all have met; CommError or TimeoutError (naming the late rank)
// otherwise. The store must outlive the group: allocate_window uses it, and the keys `lost/first` and `lost/<rank>` (put by the
// launcher when a rank of the job has died) end the waits of the others.
// Store keys begin with "comm/<name>/<generation>/".
std::unique_ptr<Group> make_group(Store& store, const GroupSetup& setup);

// The setup of a group of some ranks of `whole`, of which this one is: `ranks` are ranks of whole, ascending. Several disjoint
// subsets (the stages of each replica) may use one name. Errors: CommError where this rank is not among them.
GroupSetup subset_of(const GroupSetup& whole, const std::string& name, const std::vector<int>& ranks);

// A group of one rank, without a store: collectives copy, windows are private memory.
std::unique_ptr<Group> make_single_group(const GroupOptions& options = {});

// The identity of this machine's running kernel (its boot id).
std::string this_host_id();

}  // namespace starling
