// How the ranks of a group find out that all of them have come to make it. MPI makes a communicator without a timeout, so this comes first.
#pragma once

#include "starling/comm/bootstrap.h"
#include "starling/comm/mpi/patience.h"
#include "starling/comm/mpi/plugin.h"

namespace starling {

// The first rank waits for a word of each other one, then tells all. A tag that belongs to the group's name.
// Errors: TimeoutError naming who did not come, CommError.
int meet_over_mpi(MpiLibrary& library, const GroupSetup& setup, MpiPatience& patience);

}  // namespace starling
