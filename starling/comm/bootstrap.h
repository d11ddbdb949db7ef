// Makes groups. The ranks find each other through a Store, share memory within a host and connect between
// hosts.
//
//   starling::GroupSetup setup;
//   setup.rank = rank;
//   setup.size = size;
//   setup.connect = …;  // only if the ranks are on several hosts (comm/network/peer_connections.h)
//   std::unique_ptr<starling::Group> group = starling::make_group(store, setup);
//
// A process that runs alone calls make_single_group(). All settings are arguments: nothing is read from the
// environment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/comm/host/flags.h"
#include "starling/comm/network/peer_connections.h"
#include "starling/net/store/store.h"

namespace starling {

// GroupSetup is what one rank knows about the group that it is about to join.
struct GroupSetup {
  int rank = 0;
  int size = 1;
  // Tells the groups of a job apart. All ranks of the group pass the same name. A name is used once per
  // generation.
  std::string name = "world";
  int64_t generation = 0;
  // The rank in the job of each rank of the group. The store reports lost ranks by these numbers. Empty:
  // every rank has the same number in the group and in the job.
  std::vector<int> world_ranks;
  GroupOptions options;
  // Ranks with equal host_id share memory. Empty: this_host_id() is used.
  std::string host_id;
  // The host's name in messages. Empty: the machine's name is used.
  std::string host_name;
  // The NUMA node of this rank, or -1 for none. By default it is the node of the processors that this rank
  // may use (comm/host/numa.h).
  std::optional<int> numa_node;
  // How ranks of one host wait for each other. The default is WaitPolicy::for_ranks.
  std::optional<WaitPolicy> waiting;
  // Connects ranks that do not share memory. Empty: all ranks must be on one host.
  Connector connect;
};

// Makes the group. It is a collective over the ranks of the group and returns when all of them have arrived.
// The store must outlive the group, which uses the store for windows, for lost ranks and for failures. The
// store keys of the group begin with group_keys(generation). The server of the store writes the keys
// `lost/first` and `lost/<rank>` when a rank of the job is lost. `lost/<rank>` ends the waits of the other
// ranks.
// Errors: TimeoutError that names a rank that did not arrive; CommError.
std::unique_ptr<Group> make_group(Store& store, const GroupSetup& setup);

// Returns the beginning of the store keys of all groups of a generation: "comm/<generation>/".
std::string group_keys(int64_t generation);

// Returns the setup of a group that has some ranks of `whole`, this rank among them. `ranks` are ranks of
// `whole`, ascending. Several disjoint subsets may use one name, for example the stages of each replica.
// Errors: CommError if this rank is not in `ranks`.
GroupSetup subset_of(const GroupSetup& whole, const std::string& name, const std::vector<int>& ranks);

// Makes a group of one rank, which needs no store. Its collectives copy, and its windows are private memory.
// `job_rank` is the number of that rank in the job.
std::unique_ptr<Group> make_single_group(const GroupOptions& options = {}, int job_rank = 0);

// Returns the identity of this machine's running kernel (its boot id). Without a boot id it returns the
// machine's name.
std::string this_host_id();

}  // namespace starling
