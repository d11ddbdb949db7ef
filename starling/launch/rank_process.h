// Starts a rank as a child process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/unique_fd.h"

namespace starling {

struct SpawnRequest {
  std::string program;                   // path of the executable
  std::vector<std::string> argv;         // including argv[0]
  std::vector<std::string> environment;  // NAME=VALUE
  std::vector<int> cpus;                 // affinity; empty: that of the parent
  std::vector<int> inherit;              // descriptors that stay open in the child under their numbers
  bool pipe_stdout = true;               // false: the child shares the standard output of the parent
  bool pipe_stderr = true;
  int in = -1;             // standard input; -1: /dev/null
  sigset_t signal_mask{};  // signal mask of the child
};

// RankProcess owns the descriptors that the launcher holds for a child. The destructor does not end the
// process.
struct RankProcess {
  pid_t pid = -1;
  UniqueFd pidfd;  // readable when the child has ended
  UniqueFd out;    // read ends, non-blocking; invalid if the child shares the descriptor of the parent
  UniqueFd err;
};

// Starts the child in its own process group. All signals have their default action, except that SIGTTOU is
// ignored, so that a rank in the background may write to the terminal. The kernel kills the child when the
// calling thread ends. The caller must therefore be a thread that outlives the ranks. Throws Error(kInternal)
// with the reason if the program cannot be executed.
RankProcess spawn_rank(const SpawnRequest& request);

// The pipes of a child's standard output and error. An end is invalid if the child shares the descriptor of
// the parent.
struct ChildStreams {
  UniqueFd out, err;              // read ends, for the parent
  UniqueFd child_out, child_err;  // write ends
};
// Makes the pipes that the request asks for. Throws Error(kInternal).
ChildStreams make_streams(const SpawnRequest& request);

// Called by a new child. It gets a process group of its own, and the kernel kills it when the thread ends
// that started it. Signals that were ignored get their default action, except for those in `kept`. SIGTTOU is
// ignored. Ends the child if the parent has ended. Returns false, with errno, if the system refuses. Calls
// only async-signal-safe functions.
bool become_rank(pid_t parent, std::initializer_list<int> kept);

// Returns what the parent keeps of a child, which it also moves into its own process group. If the system
// gives no descriptor for the child, ends it and throws Error(kInternal).
RankProcess adopt_rank(pid_t pid, ChildStreams& streams);

// Throws Error(kInternal) with errno's text: `what` failed while a rank was started.
[[noreturn]] void cannot_start(const char* what);

// Moves a descriptor above the standard descriptors, which may be closed when the launcher starts. Throws
// Error(kInternal).
UniqueFd raised(int fd);

// Returns whether `signal` would end the process at once, because the process neither handles, blocks nor
// ignores it and does not wait for it. Returns false if the process is gone.
bool would_end(pid_t pid, int signal);

// Creates a pipe and returns its read end and its write end. The read end is non-blocking. Both ends are
// close-on-exec and have numbers of 10 and above. Throws Error(kInternal).
std::pair<UniqueFd, UniqueFd> make_pipe();

}  // namespace starling
