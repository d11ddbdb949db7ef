// Starts the store of a job on one host. The launcher or the agent of the host serves it.
#pragma once

#include "starling/launch/launch_options.h"
#include "starling/net/security/job_key.h"

namespace starling {

// Generates a job key and starts a StoreServer on an abstract Unix socket with a random name, which leaves
// nothing in the file system. Only the returned value holds the key. Ranks get it through a descriptor.
// Throws CommError if the socket cannot be created.
Rendezvous start_local_rendezvous();

// Starts the store of a host for a job that already has a key. The socket gets its own random name. Throws
// CommError if the socket cannot be created.
Rendezvous start_host_rendezvous(const JobIdentity& identity);
// Generates a job key and a random job ID.
JobIdentity make_job_identity();

}  // namespace starling
