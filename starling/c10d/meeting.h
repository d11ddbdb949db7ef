// Meeting: the ranks that hold one c10d::Store become a Group.
//
// c10d's stores are not trusted (a TCPStore answers anyone who reaches its port), so they carry nothing secret and prove
// nothing: only which ranks are on which host, and where the first rank of each host serves a store of ours. Ranks of one
// host meet there, on an abstract Unix socket where the kernel vouches for the other end's user. Ranks of several hosts
// must prove the job key to each other, which each reads from a file.
//
// Keys of the c10d store begin with "starling/<round>/", so that one store may serve any number of meetings one after
// another. All ranks must come to each.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

class StoreServer;

struct MeetingOptions {
  std::string name = "world";  // of the group, for messages
  // The ranks in the job of the group's ranks, for messages; empty: they are equal.
  std::vector<int64_t> world_ranks;
  GroupOptions group;
  // Where ranks on several hosts find the job key (net/job_key.h); empty: all ranks must be on one host.
  std::string key_file;
  // Several hosts: the interface ("eth0") or address of this host that the others reach. Empty: the one that leads to
  // rank 0, and for rank 0 that of master_host (MASTER_ADDR) if it is this host's, else its first interface.
  std::string interface;
  std::string master_host;
};

// Collective. The group owns what it needs beside it and does not use `store` after the return.
// Errors: TimeoutError naming a rank that has not come, CommError, ConfigError (several hosts without a key, and how to make
// one; no such interface).
std::shared_ptr<Group> meet(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                            const MeetingOptions& options);

// MeetingPoint: where a process of this host can be met without a store of c10d, any number of times, by groups whose members
// change. Lives longer than the groups.
class MeetingPoint {
 public:
  MeetingPoint();
  ~MeetingPoint();

  // What the others must know to meet here; opaque.
  const std::string& handle() const { return handle_; }
  // Collective over the processes with these handles, which must be the same on all; the order is that of the ranks. uuid: not
  // used before. Errors as meet(); ConfigError where the own handle is missing or one is of another host.
  std::shared_ptr<Group> meet(const std::vector<std::string>& handles, int64_t uuid,
                              const MeetingOptions& options);

 private:
  const std::string name_;
  const std::string handle_;
  const std::unique_ptr<StoreServer> server_;
};

}  // namespace starling
