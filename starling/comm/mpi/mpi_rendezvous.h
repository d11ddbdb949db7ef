// The rendezvous of the ranks of a group over MPI. MPI makes a communicator without a timeout, so the
// rendezvous comes first.
#pragma once

#include "starling/comm/bootstrap.h"
#include "starling/comm/mpi/mpi_plugin.h"
#include "starling/comm/mpi/patience.h"

namespace starling {

// Returns when all ranks of the group have arrived. The first rank waits for a message of each other rank,
// and then sends a message to each. Returns a tag for MpiLibrary::make(): a hash of the group's name.
// Errors: TimeoutError that names a rank that did not arrive; CommError if a rank makes another group.
int meet_over_mpi(MpiLibrary& library, const GroupSetup& setup, MpiPatience& patience);

}  // namespace starling
