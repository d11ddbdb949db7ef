// What the launcher is asked to do.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/net/data_security.h"

namespace starling {

// A store that serves the ranks of one job.
struct Rendezvous {
  std::string address;               // STARLING_STORE
  std::string job_id;                // STARLING_JOB_ID; not secret
  std::function<UniqueFd()> key_fd;  // makes a descriptor that holds the job key, one for each rank
  std::shared_ptr<void>
      server;  // serves, and holds the shared-memory windows of the job, as long as it lives
};

// Where the ranks of this process stand in a job of several hosts.
struct HostShare {
  int first = 0;  // its ranks are first … first + LaunchOptions::ranks - 1
  int world = 0;  // ranks of the job; 0: there are no others
  std::string master_host = "127.0.0.1";
  int master_port = 0;    // 0: one that is free
  std::string job_store;  // STARLING_JOB_STORE
};

// Where the launcher of a job of several hosts starts its ranks (remote_ranks.h).
struct HostsOptions {
  struct Host {
    std::string name;
    int ranks = 1;
  };
  std::vector<Host> hosts;  // empty: all ranks run here
  std::string command;      // words between spaces: called with the host's name and one shell command
  std::string program;      // on the other hosts; empty: the path of this program
  DataSecurity security = DataSecurity::kNone;  // comm.security
  std::string interface;                        // comm.interface: where the ranks meet; empty: found out
  std::chrono::milliseconds patience{60'000};   // until all hosts have answered
  std::chrono::milliseconds reach{3'000};       // for the others to reach an address of the first host
  std::chrono::milliseconds silence{
      30'000};  // when the ranks run: a host of which nothing is heard is lost, as are we to it
};

struct LaunchOptions {
  int ranks = 1;                  // of this host; where HostsOptions name hosts, of all of them
  int threads = 0;                // per rank, OMP_NUM_THREADS of the children; 0: cores / ranks, at least 1
  bool pin = true;                // give each rank its own cores where there are enough
  std::vector<std::string> argv;  // of every child, argv[0] included
  std::string program;  // a path (on other hosts also a name that they look up); empty: this program
  const char* const* environment =
      nullptr;          // to build the children's on: NAME=VALUE strings, ended by a null pointer
  std::string run_dir;  // logs go to run_dir/log/rank-N.log; empty: no logs
  int message_fd = 2;   // where the launcher itself speaks
  bool color = false;
  bool quiet = false;  // no warnings
  // train.on_failure = continue: of the ranks below this number some may be killed, once all of them have begun to train
  // (step_board.h), and the others go on. 0: the first fault ends all.
  int expendable = 0;
  std::function<Rendezvous()> rendezvous;  // makes the job key and starts the store
  // The exit status for the error that a rank reported first; without it, or where none was reported: the rank's own.
  std::function<int(ErrorCode)> status_of;
  // Lines that say more about a fault, asked when it is announced: who waited for whom.
  std::function<std::vector<std::string>()> diagnosis;

  HostsOptions hosts;
  HostShare share;
  int world() const { return share.world > 0 ? share.world : ranks; }

  std::chrono::milliseconds fold_window{
      300};                               // how long a line of one rank waits for the others to say it too
  std::chrono::milliseconds settle{300};  // between the first sign of a fault and its message
  std::chrono::milliseconds term_after{3000};  // then the ranks that are left get SIGTERM
  std::chrono::milliseconds kill_after{4500};  // then SIGKILL
  std::chrono::milliseconds repeat_gap{
      200};  // a second signal within this is the first one again (`timeout` sends two)
};

// Threads of a rank: options.threads, or what the cores allow.
int threads_per_rank(const LaunchOptions& options, int cores);

// Descriptors that one child inherits; -1: none.
struct ChildFds {
  int key = -1;
  int error = -1;
  int board = -1;
};

// The environment of the rank `index` of this host: options.environment without any setting of an outer job, with torchrun's names and ours.
std::vector<std::string> rank_environment(const LaunchOptions& options, int index, int threads,
                                          int master_port, const Rendezvous& rendezvous, const ChildFds& fds);

}  // namespace starling
