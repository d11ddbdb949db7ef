// The Group over MPI (3 or newer), which uses the network software of a cluster.
//
// To the layers above, each rank is a host of its own. All data between ranks passes through MPI, which
// itself may use shared memory. Collectives are MPI's non-blocking ones. They are tested until they end, so
// that waits have a timeout. Messages (send, recv) have a communicator of their own and may run at the same
// time. Before each collective, the ranks compare their operations by an all-reduce of 64 bytes. A barrier
// does nothing else. If the operations differ, all ranks get the CommError that names both sides. If a rank
// does not arrive, the error names it.
//
// Differences from Starling's own engine (docs/reference/collectives.md#engines): MPI determines the order of
// summation. mpiexec notices the death of a rank and ends the job. traffic() counts the bytes of the
// algorithms that move the fewest bytes, because MPI does not say what it moves. abort() ends the waits of
// this rank only. Of GroupOptions, only timeout, recorder and warn have an effect.
#pragma once

#include <memory>

#include "starling/comm/bootstrap.h"
#include "starling/comm/mpi/mpi_plugin.h"

namespace starling {

// Makes the group. It is a collective over the ranks of the group.
// setup.world_ranks has the rank in MPI of each rank of the group, ascending. setup.rank is this rank in the
// group. Besides these, only the name, the host name and the options of `setup` are used. Groups that several
// threads of one process make at the same time must differ in name or ranks.
// Errors: TimeoutError that names a rank that did not arrive; CommError. The last group and the library must
// be destroyed before the process ends.
std::unique_ptr<Group> make_mpi_group(std::shared_ptr<MpiLibrary> library, const GroupSetup& setup);

}  // namespace starling
