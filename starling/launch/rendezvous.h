// The store of a job on one host, served by the launcher, or by the agent of the host.
#pragma once

#include "starling/launch/launch_options.h"
#include "starling/net/job_key.h"

namespace starling {

// A fresh job key and a StoreServer on an abstract Unix socket of a random name; it leaves nothing in the file system. CommError where the
// socket cannot be had. The key lives in the returned value alone; children get it by descriptor.
Rendezvous start_local_rendezvous();

// The same for a job that has a key already, under a name of its own.
Rendezvous start_host_rendezvous(const JobIdentity& identity);
// A fresh key and an id that nobody can guess.
JobIdentity make_job_identity();

}  // namespace starling
