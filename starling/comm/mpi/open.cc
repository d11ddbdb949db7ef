#include "starling/comm/mpi/open.h"

#include <fmt/format.h>

#include <array>

#include "starling/base/error.h"
#include "starling/base/shared_object.h"

namespace starling {

std::shared_ptr<MpiLibrary> open_mpi(int rank, int size, const std::string& launcher) {
  const SharedObject object(
      "starling_mpi", "comm.engine",
      "it is built where an MPI's headers are (Debian: libopenmpi-dev or libmpich-dev); or "
      "use comm.engine=starling");
  const auto open = reinterpret_cast<OpenMpiFunction>(object.find(kOpenMpiName));
  const MpiOpening opening;
  std::array<char, 1024> error{};
  std::shared_ptr<MpiLibrary> library(open(&opening, error.data(), error.size()));
  if (!library) throw CommError(fmt::format("{}: {}", object.path(), error.data()));
  if (library->rank() == rank && library->size() == size) return library;
  library->abandon();
  throw CommError(fmt::format(
      "MPI ({}) says that this is rank {} of {}, but {} says rank {} of {}; start the program with "
      "the mpiexec of the MPI that the engine was built with, or with srun --mpi=pmix or pmi2, "
      "whichever Slurm and this MPI know",
      library->version(), library->rank(), library->size(), launcher, rank, size));
}

}  // namespace starling
