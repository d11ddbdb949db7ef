// Reads the environment variables of launchers, of jobs and of the terminal into a value.
//
// A launcher determines the rank of the process. It is the first of these whose variables are set.
//
//   Starling's launcher   STARLING_STORE
//   torchrun              RANK or WORLD_SIZE
//   mpiexec               OMPI_COMM_WORLD_RANK of Open MPI, PMI_RANK of MPICH and Intel MPI, or PMIX_RANK
//   srun                  SLURM_PROCID
//
// If srun also sets variables of MPI, its own variables count. A process that mpiexec or srun started as the
// only task is alone, and so is a process without any of these variables.
#pragma once

#include <string>

namespace starling {

// The launcher that started the process.
enum class ProcessOrigin { kAlone, kLauncher, kTorchrun, kMpi, kSlurm };

// Returns "alone", "starling's launcher", "torchrun", "mpiexec" or "srun", for messages.
const char* name_of(ProcessOrigin origin);

// The place of the process in its job.
struct ProcessIdentity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // 0 if the launcher does not say it
  int local_world_size = 1;  // local_rank + 1 if the launcher does not say it
  ProcessOrigin origin = ProcessOrigin::kAlone;
};

// The values of the variables. Those that are not set have the defaults below.
struct Environment {
  ProcessIdentity identity;
  // The host of rank 0: MASTER_ADDR, or the first node of the Slurm step. Empty if the process is alone, or
  // under mpiexec without MASTER_ADDR.
  std::string master_host;
  int master_port =
      0;  // MASTER_PORT, or derived from the number of the Slurm job, or 29500 under mpiexec; 0 if alone
  std::string
      job_id;  // STARLING_JOB_ID, else TORCHELASTIC_RUN_ID, PMIX_NAMESPACE or SLURM_JOB_ID; empty: unknown
  std::string store;      // STARLING_STORE: address of the store that the launcher serves
  std::string job_store;  // STARLING_JOB_STORE: address of the store of all hosts, in a job of several hosts
  int key_fd = -1;        // STARLING_KEY_FD: inherited descriptor with the job key
  std::string key_file;   // STARLING_KEY_FILE
  int error_fd = -1;      // STARLING_ERROR_FD: pipe for errors to the launcher (fault.h)
  int board_fd = -1;      // STARLING_BOARD_FD: step board of the launcher (step_board.h)
  std::string run_dir;    // STARLING_RUN_DIR
  int omp_num_threads = 0;  // OMP_NUM_THREADS, 0 if not set
  bool no_color = false;    // NO_COLOR is set and not empty
  bool ci = false;          // CI is set and is neither empty, "0" nor "false"
  std::string term;         // TERM
  int columns = 0;          // COLUMNS, 0 if not set
};

// Returns the values in `environ`, which holds NAME=VALUE strings and ends with a null pointer. Throws
// ConfigError with the name of a variable that is missing, contradicts another variable, or is not a number.
Environment read_environment(const char* const* environ);

// Returns whether text on the descriptor `fd` shall be colored. `option` is that of --color: "always",
// "never", or "auto" for a terminal, unless NO_COLOR is set or TERM is "dumb".
bool wants_color(const Environment& environment, const std::string& option, int fd);
// As above, with the variables in `environ`. Reads no other variables, so it throws nothing.
bool wants_color(const char* const* environ, const std::string& option, int fd);

}  // namespace starling
