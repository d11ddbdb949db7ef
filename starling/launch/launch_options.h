// The options of the launcher.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/launch/cpu_share.h"
#include "starling/launch/rank_forks.h"
#include "starling/net/security/data_security.h"

namespace starling {

// A store that serves the ranks of one job.
struct Rendezvous {
  std::string address;               // STARLING_STORE
  std::string job_id;                // STARLING_JOB_ID; not secret
  std::function<UniqueFd()> key_fd;  // returns a new descriptor with the job key; called once per rank
  std::shared_ptr<void> server;      // the server, which also owns the shared-memory windows of the job
};

// The ranks of this host in a job of several hosts.
struct HostShare {
  int first = 0;  // the ranks of this host are first … first + LaunchOptions::ranks - 1
  int world = 0;  // number of ranks in the job; 0: the job has one host
  std::string master_host = "127.0.0.1";
  int master_port = 0;    // 0: a free port
  std::string job_store;  // STARLING_JOB_STORE
};

// The hosts on which the launcher starts ranks (remote_ranks.h).
struct HostsOptions {
  struct Host {
    std::string name;
    int ranks = 1;
  };
  std::vector<Host> hosts;  // empty: all ranks run on this host
  std::string command;      // words separated by spaces; called with the name of a host and one shell command
  std::string program;      // path on the other hosts; empty: the path of this program
  DataSecurity security = DataSecurity::kNone;  // comm.security
  std::chrono::milliseconds dead_after{4'000};  // comm.dead_after_s
  std::string interface;  // comm.interface, for the rendezvous; empty: chosen automatically
  std::chrono::milliseconds patience{60'000};  // longest wait for the answers of all hosts
  std::chrono::milliseconds reach{3'000};  // longest wait for a connection to an address of the first host
  // While ranks run, a host that sends nothing for this long is lost. The agent treats the launcher likewise.
  std::chrono::milliseconds silence{30'000};
};

// What the launcher starts, and how it treats faults.
struct LaunchOptions {
  int ranks = 1;                  // ranks of this host, or of all hosts if HostsOptions names hosts
  int threads = 0;                // OMP_NUM_THREADS of each rank; 0: physical cores / ranks, at least 1
  bool pin = true;                // pin each rank to its own cores if there are enough
  std::vector<std::string> argv;  // arguments of every rank, including argv[0]
  std::string program;            // a path, or on other hosts a name in PATH; empty: this program
  RankForks* forks = nullptr;  // copies of this process for the ranks of this host; null: execute the program
  // NAME=VALUE strings, terminated by a null pointer: the basis of the ranks' environment.
  const char* const* environment = nullptr;
  std::string run_dir;  // logs are written to run_dir/log/rank-N.log; empty: no logs
  int message_fd = 2;   // descriptor for the messages of the launcher
  bool color = false;
  bool quiet = false;  // no warnings
  bool json = false;   // a fault that ends the run is also an error event (fault.h) on standard output
  // For train.on_failure = "continue". If a rank below this number is killed after all of them have started
  // to train (step_board.h), the remaining ranks continue. 0: the first fault ends all ranks.
  int expendable = 0;
  std::function<Rendezvous()> rendezvous;  // generates the job key and starts the store
  // Returns the exit status for the kind of error that the rank with the first fault reported. If it is not
  // set, launch() uses the status of that rank.
  std::function<int(ErrorCode)> status_of;
  // Returns lines that explain a fault, such as which rank waited for which rank. Called when the fault is
  // announced.
  std::function<std::vector<std::string>()> diagnosis;

  HostsOptions hosts;
  HostShare share;
  int world() const { return share.world > 0 ? share.world : ranks; }

  std::chrono::milliseconds fold_window{300};  // how long a line waits for equal lines of other ranks
  std::chrono::milliseconds settle{300};       // from the first sign of a fault to its message
  std::chrono::milliseconds term_after{3000};  // from the first sign of a fault to SIGTERM for all ranks
  std::chrono::milliseconds kill_after{4500};  // from the first sign of a fault to SIGKILL
  std::chrono::milliseconds repeat_gap{
      200};  // a second signal within this time is ignored: `timeout` sends two
};

// Returns the number of threads per rank: options.threads, or `cores` divided by the ranks, at least 1.
int threads_per_rank(const LaunchOptions& options, int cores);

// The descriptors that a rank inherits; -1: none.
struct ChildFds {
  int key = -1;
  int error = -1;
  int board = -1;
};

// GOMP_SPINCOUNT for ranks with several threads: how often a thread of GNU's OpenMP looks for work before it
// sleeps. OpenMP's own value is 300 times as large. While a thread looks for work, no other process can use
// its core.
inline constexpr const char* kBriefSpin = "1000";

// The threads of a rank.
struct RankThreads {
  int count = 1;
  bool crowded = false;  // whether the ranks of this host have more threads than cores
};

// Returns the threads that the ranks of this host get, which may use `cpus`.
RankThreads rank_threads(const LaunchOptions& options, const std::vector<Cpu>& cpus);

// Returns the warning that the threads of the ranks share cores, or nothing if they do not.
std::optional<std::string> crowd_warning(const LaunchOptions& options, const std::vector<Cpu>& cpus);

// Forks the ranks of this host for options.forks, if copies can replace processes that execute the program.
// Otherwise returns no copies. Copies cannot replace such processes if this process has several threads, or
// if OpenMP must read how threads wait. Copies also cannot replace them if the ranks run on other hosts or
// execute options.program. options.environment is ::environ. Errors: those of RankForks.
RankForks fork_ranks(const LaunchOptions& options);

// Returns the environment of rank `index` of this host. It is options.environment without the variables of an
// enclosing job, plus the variables of torchrun and of Starling.
//
// It also says how threads wait, unless options.environment does. Threads that share cores sleep while they
// wait (OMP_WAIT_POLICY). If a rank has several threads and each has a core, a thread looks for work
// kBriefSpin times before it sleeps.
std::vector<std::string> rank_environment(const LaunchOptions& options, int index, const RankThreads& threads,
                                          int master_port, const Rendezvous& rendezvous, const ChildFds& fds);

}  // namespace starling
