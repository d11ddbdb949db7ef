// Loads the MPI engine (comm.engine = "mpi").
#pragma once

#include <memory>
#include <string>

#include "starling/comm/mpi/mpi_plugin.h"

namespace starling {

// Loads the plug-in and initializes MPI. It is a collective over all ranks that mpiexec has started.
// `rank` and `size` are those of this process according to `launcher` ("mpiexec", "srun", …). MPI must
// agree with them.
// Errors: ConfigError if the plug-in is missing; CommError with the reason from MPI or the plug-in.
std::shared_ptr<MpiLibrary> open_mpi(int rank, int size, const std::string& launcher);

}  // namespace starling
