#include "starling/launch/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <map>
#include <optional>
#include <string_view>

#include "starling/base/error.h"
#include "starling/launch/slurm.h"

namespace starling {
namespace {

class Variables {
 public:
  explicit Variables(const char* const* environ) {
    for (; environ && *environ; ++environ) {
      const std::string_view entry(*environ);
      const size_t equals = entry.find('=');
      if (equals != std::string_view::npos)
        values_.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }

  bool has(const char* name) const { return values_.contains(name); }

  std::string text(const char* name) const {
    const auto at = values_.find(name);
    return at == values_.end() ? std::string() : at->second;
  }

  // Returns the value of the first of `names` that is set and not empty.
  std::string first_text(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (std::string value = text(name); !value.empty()) return value;
    }
    return {};
  }

  std::optional<int> number(const char* name, int least, int most) const {
    const std::string value = text(name);
    if (value.empty()) return std::nullopt;
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || result < least || result > most) {
      throw ConfigError(
          name,
          fmt::format("\"{}\" is not a number from {} to {}. Correct the environment variable or unset it",
                      value, least, most));
    }
    return result;
  }

  int required(const char* name, const char* because, int least, int most) const {
    const std::optional<int> value = number(name, least, most);
    if (!value) {
      throw ConfigError(
          name, fmt::format("not set, although {} is set. Set both, or unset {} to run a single process",
                            because, because));
    }
    return *value;
  }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

void check_below(const char* a, int value, const char* b, int bound) {
  if (value >= bound) {
    throw ConfigError(a, fmt::format("{} contradicts {}={}: ranks are counted from 0", value, b, bound));
  }
}

// Reads RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. torchrun and Starling's launcher set these
// variables.
ProcessIdentity torchrun_identity(const Variables& env, ProcessOrigin origin) {
  ProcessIdentity id;
  id.origin = origin;
  id.rank = env.required("RANK", origin == ProcessOrigin::kLauncher ? "STARLING_STORE" : "WORLD_SIZE", 0,
                         INT_MAX - 1);
  id.world_size = env.required("WORLD_SIZE", "RANK", 1, INT_MAX);
  check_below("RANK", id.rank, "WORLD_SIZE", id.world_size);
  id.local_rank = env.number("LOCAL_RANK", 0, INT_MAX - 1).value_or(0);
  id.local_world_size = env.number("LOCAL_WORLD_SIZE", 1, INT_MAX).value_or(id.local_rank + 1);
  check_below("LOCAL_RANK", id.local_rank, "LOCAL_WORLD_SIZE", id.local_world_size);
  if (id.local_world_size > id.world_size) {
    throw ConfigError("LOCAL_WORLD_SIZE",
                      fmt::format("{} contradicts WORLD_SIZE={}: a host cannot hold more ranks than the job",
                                  id.local_world_size, id.world_size));
  }
  return id;
}

// Returns true in a task that srun started. Returns false in the shell of salloc and in an sbatch script,
// where SLURM_PROCID may be set, too.
bool under_srun(const Variables& env) {
  if (!env.has("SLURM_PROCID") || !(env.has("SLURM_NTASKS") || env.has("SLURM_STEP_NUM_TASKS"))) return false;
  const std::string step = env.first_text({"SLURM_STEP_ID", "SLURM_STEPID"});
  if (step.empty()) return env.text("ENVIRONMENT") != "BATCH";
  // The steps of the shell of salloc and of a batch script have numbers near 2^32.
  unsigned long number = 0;
  std::from_chars(step.data(), step.data() + step.size(), number);
  return number < 0xffff'fff0;
}

ProcessIdentity slurm_identity(const Variables& env) {
  ProcessIdentity id;
  id.origin = ProcessOrigin::kSlurm;
  const char* tasks = env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  id.rank = env.required("SLURM_PROCID", tasks, 0, INT_MAX - 1);
  id.world_size = env.required(tasks, "SLURM_PROCID", 1, INT_MAX);
  check_below("SLURM_PROCID", id.rank, tasks, id.world_size);
  id.local_rank = env.number("SLURM_LOCALID", 0, INT_MAX - 1).value_or(0);
  const std::vector<int> per_node =
      slurm_tasks_per_node(env.first_text({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}));
  const size_t node = static_cast<size_t>(env.number("SLURM_NODEID", 0, INT_MAX).value_or(0));
  id.local_world_size = node < per_node.size() ? per_node[node] : id.local_rank + 1;
  check_below("SLURM_LOCALID", id.local_rank, "SLURM_TASKS_PER_NODE", id.local_world_size);
  return id;
}

// The variables of the two families of MPI launchers.
struct MpiNames {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr MpiNames kMpiNames[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                  {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
                                  {"PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"}};

// Returns the names of the MPI launcher whose variables are set. Returns null if no variables are set, or if
// srun set them for MPI in addition to its own variables.
const MpiNames* mpi_names(const Variables& env) {
  for (const MpiNames& names : kMpiNames) {
    if (!env.has(names.rank)) continue;
    return under_srun(env) && !env.has(names.local_size) ? nullptr : &names;
  }
  return nullptr;
}

ProcessIdentity mpi_identity(const Variables& env, const MpiNames& names) {
  ProcessIdentity id;
  id.origin = ProcessOrigin::kMpi;
  id.rank = env.required(names.rank, names.size, 0, INT_MAX - 1);
  id.world_size = env.required(names.size, names.rank, 1, INT_MAX);
  check_below(names.rank, id.rank, names.size, id.world_size);
  id.local_rank = env.number(names.local_rank, 0, INT_MAX - 1).value_or(0);
  id.local_world_size = env.number(names.local_size, 1, INT_MAX).value_or(id.local_rank + 1);
  check_below(names.local_rank, id.local_rank, names.local_size, id.local_world_size);
  return id;
}

// Finds the host and the port of rank 0 for torchrun, mpiexec and srun.
void read_master(const Variables& env, Environment& out) {
  out.master_host = env.text("MASTER_ADDR");
  out.master_port = env.number("MASTER_PORT", 1, 65535).value_or(0);
  if (out.identity.origin == ProcessOrigin::kSlurm) {
    if (out.master_host.empty()) {
      const std::string list =
          env.first_text({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
      out.master_host = first_slurm_host(list);
      if (out.master_host.empty()) {
        throw ConfigError("SLURM_NODELIST",
                          fmt::format("\"{}\" names no host. Set MASTER_ADDR to the host of rank 0", list));
      }
    }
    if (out.master_port == 0)
      out.master_port = 20'000 + env.number("SLURM_JOB_ID", 0, INT_MAX).value_or(0) % 10'000;
  } else if (out.identity.origin == ProcessOrigin::kMpi) {
    if (out.master_port == 0) out.master_port = 29'500;
  } else if (out.identity.origin == ProcessOrigin::kTorchrun && out.identity.world_size > 1) {
    if (out.master_host.empty())
      throw ConfigError("MASTER_ADDR",
                        "not set, although RANK and WORLD_SIZE are set. Set it to the host of rank 0");
    if (out.master_port == 0)
      throw ConfigError(
          "MASTER_PORT",
          "not set, although RANK and WORLD_SIZE are set. Set it to a free port of MASTER_ADDR");
  }
}

ProcessIdentity identity_of(const Variables& env) {
  if (env.has("STARLING_STORE")) return torchrun_identity(env, ProcessOrigin::kLauncher);
  if (env.has("RANK") || env.has("WORLD_SIZE")) return torchrun_identity(env, ProcessOrigin::kTorchrun);
  if (const MpiNames* names = mpi_names(env)) {
    const ProcessIdentity id = mpi_identity(env, *names);
    return id.world_size > 1 ? id : ProcessIdentity{};
  }
  if (under_srun(env)) {
    const ProcessIdentity id = slurm_identity(env);
    if (id.world_size > 1) return id;
  }
  return {};
}

void read_terminal(const Variables& env, Environment& out) {
  out.no_color = !env.text("NO_COLOR").empty();
  out.term = env.text("TERM");
}

}  // namespace

const char* name_of(ProcessOrigin origin) {
  switch (origin) {
    case ProcessOrigin::kAlone:
      return "alone";
    case ProcessOrigin::kLauncher:
      return "starling's launcher";
    case ProcessOrigin::kTorchrun:
      return "torchrun";
    case ProcessOrigin::kMpi:
      return "mpiexec";
    case ProcessOrigin::kSlurm:
      return "srun";
  }
  return "alone";
}

Environment read_environment(const char* const* environ) {
  const Variables env(environ);
  Environment out;
  out.identity = identity_of(env);
  if (out.identity.origin != ProcessOrigin::kAlone) read_master(env, out);
  // mpiexec may run several jobs inside one Slurm job.
  const bool mpi = out.identity.origin == ProcessOrigin::kMpi;
  out.job_id =
      env.first_text({"STARLING_JOB_ID", "TORCHELASTIC_RUN_ID", mpi ? "PMIX_NAMESPACE" : "SLURM_JOB_ID"});
  out.store = env.text("STARLING_STORE");
  out.job_store = env.text("STARLING_JOB_STORE");
  out.key_fd = env.number("STARLING_KEY_FD", 3, INT_MAX).value_or(-1);
  out.key_file = env.text("STARLING_KEY_FILE");
  if (out.key_fd >= 0 && !out.key_file.empty()) {
    throw ConfigError(
        "STARLING_KEY_FD",
        "contradicts STARLING_KEY_FILE: only one of them may provide the job key. Unset the other");
  }
  out.error_fd = env.number("STARLING_ERROR_FD", 3, INT_MAX).value_or(-1);
  out.board_fd = env.number("STARLING_BOARD_FD", 3, INT_MAX).value_or(-1);
  out.run_dir = env.text("STARLING_RUN_DIR");
  // "4,2" holds a number for each nesting level. The first number is used.
  const std::string omp = env.text("OMP_NUM_THREADS");
  std::from_chars(omp.data(), omp.data() + omp.size(), out.omp_num_threads);
  read_terminal(env, out);
  const std::string ci = env.text("CI");
  out.ci = !ci.empty() && ci != "0" && ci != "false";
  const std::string columns = env.text("COLUMNS");
  std::from_chars(columns.data(), columns.data() + columns.size(), out.columns);
  return out;
}

bool wants_color(const Environment& environment, const std::string& option, int fd) {
  if (option == "always") return true;
  if (option == "never" || environment.no_color || environment.term == "dumb") return false;
  return ::isatty(fd) == 1;
}

bool wants_color(const char* const* environ, const std::string& option, int fd) {
  Environment terminal;
  read_terminal(Variables(environ), terminal);
  return wants_color(terminal, option, fd);
}

}  // namespace starling
