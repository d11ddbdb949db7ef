// A keeper is a process that runs one attempt of a job, so that the attempt does not depend on the daemon.
//
//   daemon ──fork──► keeper ──► launcher (`starling launch …`) ──► ranks
//
// A keeper first claims its attempt by a file that names its process. Only one process can make the file, so
// an attempt runs at most once, no matter when the daemon is killed. When the launcher has ended, the keeper
// writes a record of the end. A daemon that starts anew finds the claim, the process or the record. The
// kernel kills the launcher, and with it the ranks, if the keeper is killed.
// Processes that the ranks have started and left behind live on then, because only the launcher ends them.
//
// The keeper sends SIGTERM to the launcher at most twice. The first signal of any kind that the keeper gets
// lets the launcher end in order, with a checkpoint if the job writes one. Later signals are ignored, but for
// one SIGINT: it repeats the SIGTERM, so that the launcher kills the ranks and what they have left behind.
#pragma once

#include <signal.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starling/queue/process_identity.h"

namespace starling {

// The files of one attempt, in the folder of the job.
struct AttemptFiles {
  std::string folder;  // of the job; exists
  int attempt = 1;
  std::string claim() const;
  std::string end() const;
};

// What a keeper runs.
struct KeeperOrder {
  AttemptFiles files;
  std::string program;                   // path of the executable
  std::vector<std::string> argv;         // including argv[0]
  std::string folder;                    // where the program runs
  std::vector<std::string> environment;  // NAME=VALUE
  std::vector<int> cpus;                 // affinity; empty: that of the daemon
  sigset_t mask{};                       // signal mask of the program
};

// How an attempt ended.
struct AttemptEnd {
  int status = 0;       // the exit status of the launcher, or 128 + signal
  std::string message;  // why the launcher could not be started; empty if it was
  double ended_s = 0;   // when it ended, in seconds since 1970
  bool told = false;    // the keeper was told to stop it, by the daemon or from outside
};

// Starts a keeper in a session of its own. It is no child of the caller. Its output goes to the files "out"
// and "err" in the folder of the job. The caller must have one thread. Throws Error (kInternal) if the system
// allows no more processes.
void start_keeper(const KeeperOrder& order);

// Returns the process that claimed the attempt, or nothing if none did. A void claim has the process 0.
// Throws Error (kCheckpoint) if the file is damaged.
std::optional<ProcessName> claim_of(const AttemptFiles& files);
// Claims the attempt for no process, so that no keeper can begin it any more. Returns false if a keeper has
// claimed it before.
bool void_claim(const AttemptFiles& files);
// Returns how the attempt ended, or nothing if there is no record.
std::optional<AttemptEnd> end_of(const AttemptFiles& files);

}  // namespace starling
