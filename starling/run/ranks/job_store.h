// JobStore connects this rank to the rendezvous store of its job (design decision 7). Who serves the store
// depends on the launcher:
//
//   our launcher             The launcher serves the store on a Unix socket and passes the key in an
//                            inherited descriptor. On several hosts, each host's agent
//                            (launch/host_agent.h) serves the store of its host. The agent of the first host
//                            also serves the job's store by TCP.
//   torchrun, srun, mpiexec  One host: local rank 0 serves the store on an abstract Unix socket, and the
//                            kernel identifies the peer's user. Several hosts: rank 0 serves it at
//                            MASTER_ADDR, MASTER_PORT + 1, and the key file is needed.
//
// Descriptors (of windows) always travel through the Unix socket of the host.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "starling/launch/environment.h"
#include "starling/net/store/store.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"
#include "starling/spec/run_spec.h"

namespace starling {

// This rank's connection to the job's store, and the servers that this rank runs for it.
class JobStore {
 public:
  // Starts the servers that this rank has to run, and connects. Errors: ConfigError (no key, wrong key file),
  // CommError, TimeoutError.
  JobStore(const CommSpec& spec, const Environment& environment);
  // Says goodbye to the server if announce() was called and abandon() was not: this rank ends in order.
  ~JobStore();

  // The store of the job.
  Store& store();
  // The job's id, key and protection.
  const JobIdentity& identity() const { return identity_; }
  // Registers this rank. From now on, all ranks learn of it if this process ends without ~JobStore.
  void announce(int rank);
  // Marks this rank as failed: the destructor closes the connection without goodbye, so that all other ranks
  // learn of it.
  void abandon() { orderly_ = false; }

 private:
  std::unique_ptr<StoreServer> host_server_, job_server_;
  JobIdentity identity_;
  std::unique_ptr<StoreClient> host_store_, job_store_;  // job_store_ is null on one host
  std::unique_ptr<Store> both_;  // sends values to the job's store and descriptors to the host's
  bool announced_ = false;
  bool orderly_ = true;
};

}  // namespace starling
