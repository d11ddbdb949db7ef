// Everything that Starling reads from the environment, read once into a value.
//
// Who we are comes from, in this order: our own launcher (STARLING_STORE), torchrun (RANK), mpiexec (OMPI_COMM_WORLD_RANK, or
// PMI_RANK of MPICH and Intel MPI), srun (SLURM_PROCID), each with more than one task; else the process is alone.
#pragma once

#include <string>

namespace starling {

enum class ProcessOrigin { kAlone, kLauncher, kTorchrun, kMpi, kSlurm };

// "alone", "starling's launcher", "torchrun", "mpiexec" or "srun", for messages.
const char* name_of(ProcessOrigin origin);

struct ProcessIdentity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // 0 where torchrun's variables were set by hand without it
  int local_world_size = 1;
  ProcessOrigin origin = ProcessOrigin::kAlone;
};

struct Environment {
  ProcessIdentity identity;
  // Where rank 0 is: MASTER_ADDR, or the first node of the Slurm step; empty when alone, and where mpiexec's user does not say.
  std::string master_host;
  int master_port =
      0;  // MASTER_PORT, or derived from the Slurm job's number, or 29500 under mpiexec; 0 when alone
  std::string
      job_id;  // STARLING_JOB_ID, else TORCHELASTIC_RUN_ID, PMIX_NAMESPACE or SLURM_JOB_ID; empty: unknown
  std::string store;  // STARLING_STORE: address of the launcher's store
  std::string
      job_store;  // STARLING_JOB_STORE: address of the store of all hosts, where the launcher started several
  int key_fd = -1;          // STARLING_KEY_FD: inherited descriptor that holds the job key
  std::string key_file;     // STARLING_KEY_FILE
  int error_fd = -1;        // STARLING_ERROR_FD: the launcher's ear (fault.h)
  int board_fd = -1;        // STARLING_BOARD_FD: the launcher's step board (step_board.h)
  std::string run_dir;      // STARLING_RUN_DIR
  int omp_num_threads = 0;  // OMP_NUM_THREADS, 0 if not set
  bool no_color = false;    // NO_COLOR is set and not empty
  bool ci = false;          // CI is set and neither empty, "0" nor "false"
  std::string term;         // TERM
  int columns = 0;          // COLUMNS, 0 if not set
};

// environ: NAME=VALUE strings, ended by a null pointer. ConfigError naming the variables when they contradict each
// other or do not hold numbers.
Environment read_environment(const char* const* environ);

}  // namespace starling
