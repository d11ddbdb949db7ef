// Loading the MPI engine (comm.engine = "mpi").
#pragma once

#include <memory>
#include <string>

#include "starling/comm/mpi/plugin.h"

namespace starling {

// Loads the plug-in and begins MPI: collective over all that mpiexec started. rank, size: who this is to `launcher` ("mpiexec", "srun", …),
// which MPI must see alike. Errors: ConfigError where the plug-in is not there, CommError with what MPI or the plug-in says.
std::shared_ptr<MpiLibrary> open_mpi(int rank, int size, const std::string& launcher);

}  // namespace starling
