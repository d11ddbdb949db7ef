// The Group over MPI (3 or newer), so that a cluster's own network stack carries all that training sends.
//
// Each rank is a host of its own to the layers above: they share nothing but what goes through MPI, which uses shared memory itself.
// Collectives are MPI's non-blocking ones, tested until they end, so that waits have a timeout; send and recv have a communicator of their
// own and go on meanwhile. Before each collective the ranks compare what they are about to do by one all-reduce of 64 bytes (which is all
// that a barrier does): where they differ all of them get the CommError that names both sides, and who does not come is named.
//
// Different from our own engine (docs/communication.md): the order of summation is MPI's; a rank that dies is mpiexec's matter, which
// ends the job; traffic() counts bytes handed to MPI and got from it; GroupOptions::shared_memory, algorithm and tuning count for nothing.
#pragma once

#include <memory>

#include "starling/comm/bootstrap.h"
#include "starling/comm/mpi/plugin.h"

namespace starling {

// Collective over the ranks of the group: setup.world_ranks, in MPI's numbers, this one among them at setup.rank. Of setup, name and
// options count beside these; groups that threads of one process make at the same time differ in name or members.
// Errors: TimeoutError naming who did not come, CommError. The last group, and the library with it, must go before the process ends.
std::unique_ptr<Group> make_mpi_group(std::shared_ptr<MpiLibrary> library, const GroupSetup& setup);

}  // namespace starling
