// rendezvous_group() makes a Group of the ranks that hold one c10d::Store.
//
// Stores of c10d are not trusted: a TCPStore answers every process that reaches its port. They therefore
// carry nothing secret and prove nothing. They only tell which ranks are on which host, and where our own
// stores are. The first rank of each host serves one, and rank 0 serves one for several hosts. Ranks of one
// host connect to the store of the host by an abstract Unix socket. The kernel names the user of the other
// end of this socket. Ranks of several hosts must prove to each other that they have the job key, which each
// reads from a file.
//
// The keys in the c10d store begin with "starling/": one counts arrivals, and those of a round have the
// round's number. One store may therefore serve any number of rendezvous one after another. All ranks must
// take part in each.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/net/security/data_security.h"

namespace starling {

class StoreServer;

// How ranks meet, and the options of their group.
struct RendezvousOptions {
  std::string name = "world";  // name of the group in messages
  // The ranks in the job of the group's ranks, for messages. Empty: a rank has one number in the group and in
  // the job.
  std::vector<int64_t> world_ranks;
  GroupOptions group;
  // The file of the job key (net/security/job_key.h), for ranks on several hosts. Empty: all ranks must be on
  // one host.
  std::string key_file;
  // How data between hosts is protected (net/security/data_security.h). Equal on all ranks.
  DataSecurity security = DataSecurity::kNone;
  // For several hosts: the interface ("eth0") or the address of this host that all other hosts reach. If it
  // is empty, all ranks except rank 0 use the interface that leads to rank 0. Rank 0 then listens at the
  // address of master_host (MASTER_ADDR) if that is an address of this host. Otherwise it listens on the
  // first interface that is not loopback.
  std::string interface;
  std::string master_host;
};

// Makes the group of the ranks that hold `store`. Collective. Blocks. The group owns what it needs and does
// not use `store` after the return.
//
// Errors: TimeoutError that names a rank that did not arrive; CommError; ConfigError if ranks on several
// hosts have no job key (the message says how to make one), or if there is no such interface.
std::shared_ptr<Group> rendezvous_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                        const RendezvousOptions& options);

// LocalRendezvous is a place where processes of this host meet without a c10d store. They may meet any number
// of times, in groups with changing membership. It must outlive these groups.
class LocalRendezvous {
 public:
  LocalRendezvous();
  ~LocalRendezvous();

  // Returns what processes must know to meet here. The text is opaque.
  const std::string& handle() const { return handle_; }
  // Makes a group of the processes with these handles. Collective over these processes. The handles are equal
  // on all of them, and their order is that of the ranks. `uuid` is a number that no earlier join() used.
  //
  // Errors: as rendezvous_group() above; ConfigError if the own handle is missing or a handle is of another
  // host.
  std::shared_ptr<Group> join(const std::vector<std::string>& handles, int64_t uuid,
                              const RendezvousOptions& options);

 private:
  const std::string name_;
  const std::string handle_;
  const std::unique_ptr<StoreServer> server_;
};

}  // namespace starling
