// JobStore: the rendezvous store of this job as this rank reaches it (design decision 7).
//
//   our launcher    the launcher serves it on a Unix socket; the key comes by an inherited descriptor. Several hosts: each host's
//                   agent (launch/host_agent.h) serves that of its host, that of the first host also the job's, by TCP
//   torchrun, srun, mpiexec  one host: local rank 0 serves it on an abstract Unix socket, where the kernel vouches for the peer's
//                   user; several hosts: rank 0 serves it at MASTER_ADDR, MASTER_PORT + 1, and the key file is needed
// Descriptors (windows) always go over the Unix socket of the host.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "starling/launch/environment.h"
#include "starling/net/store.h"
#include "starling/net/store_client.h"
#include "starling/net/store_server.h"
#include "starling/spec/run_spec.h"

namespace starling {

class JobStore {
 public:
  // Connects, serving first where this rank has to. Errors: ConfigError (no key, wrong key file), CommError, TimeoutError.
  JobStore(const CommSpec& spec, const Environment& environment);
  ~JobStore();  // says goodbye: this rank ends in order

  Store& store();
  const JobIdentity& identity() const { return identity_; }
  // The end of this process without ~JobStore is made known to the others from now on.
  void announce(int rank);
  // This rank ends in disorder: its connection is just closed, so that the others learn of it.
  void abandon() { orderly_ = false; }

 private:
  std::unique_ptr<StoreServer> host_server_, job_server_;
  JobIdentity identity_;
  std::unique_ptr<StoreClient> host_store_, job_store_;  // job_store_: several hosts only
  std::unique_ptr<Store> both_;                          // values to the job's, descriptors to the host's
  bool announced_ = false;
  bool orderly_ = true;
};

}  // namespace starling
