// One rank as a child process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "starling/base/unique_fd.h"

namespace starling {

struct SpawnRequest {
  std::string program;                   // path to execute
  std::vector<std::string> argv;         // argv[0] included
  std::vector<std::string> environment;  // NAME=VALUE
  std::vector<int> cpus;                 // affinity; empty: the parent's
  std::vector<int> inherit;              // descriptors that stay open in the child, at their numbers
  bool pipe_stdout = true;               // false: the child has the parent's own
  bool pipe_stderr = true;
  int in = -1;             // standard input; -1: /dev/null
  sigset_t signal_mask{};  // of the child
};

// Owns what the launcher holds of a child. The process itself is not ended by the destructor.
struct RankProcess {
  pid_t pid = -1;
  UniqueFd pidfd;  // readable when the child has ended
  UniqueFd out;    // read ends, non-blocking; invalid where the child has the parent's
  UniqueFd err;
};

// Starts the child in a process group of its own, every signal at its default except SIGTTOU
// (ignored: a rank in the background may write to the terminal). The kernel kills it when the thread that called this ends, so
// call it from the thread that outlives the ranks. Error(kInternal) when the program cannot be executed, with the reason.
RankProcess spawn_rank(const SpawnRequest& request);

// A pipe; the read end is non-blocking, both are close-on-exec and numbered 10 or above. Error(kInternal).
std::pair<UniqueFd, UniqueFd> make_pipe();

}  // namespace starling
