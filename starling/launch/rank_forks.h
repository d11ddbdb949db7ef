// Starts ranks as forks of this process.
#pragma once

#include <vector>

#include "starling/base/unique_fd.h"
#include "starling/launch/rank_process.h"

namespace starling {

// RankForks are copies of this process that wait to become ranks. A rank that is executed anew loads libtorch
// first, which takes 0.3 s of a core. A copy has loaded it already, and shares its memory.
//
// A fork has only the thread that calls fork(). Another thread may hold a lock at that time, which nobody
// would release in the copy. The copies are therefore made before the launcher starts threads, and learn
// later what they are to do.
class RankForks {
 public:
  // Returns whether this process has a single thread. Waits up to 50 ms for threads that are about to end.
  static bool possible();

  RankForks() = default;  // no copies
  // Forks `count` times. In a copy the constructor returns when begin() has started the rank, and in_rank()
  // is then true. It does not return if begin() is never called. The constructor first writes out what the
  // standard streams have buffered. Throws Error(kInternal) if the system allows no further process.
  explicit RankForks(int count);
  RankForks(RankForks&&) = default;
  RankForks& operator=(RankForks&&) = delete;
  // Ends and reaps the copies that have not begun.
  ~RankForks();

  // Whether this process is a rank that begin() has started. It has the variables, descriptors and cores of
  // the request, a process group, and a name. The kernel kills it when its launcher ends. Signals that were
  // ignored have their default action, except that SIGTTOU is ignored and SIGPIPE stays as it was. All else
  // is that of the process that was copied.
  bool in_rank() const { return in_rank_; }
  // Whether no copy is left for begin().
  bool empty() const { return copies_.empty(); }

  // Starts a rank in a copy. The result is that of spawn_rank(request). It uses none of the program, the
  // arguments and the signal mask of the request. The system shows the process as "starling:3" for rank 3 of
  // `starling`. Throws Error(kInternal) if the copy has ended.
  RankProcess begin(const SpawnRequest& request, int rank);

 private:
  struct Copy {
    pid_t pid = -1;
    UniqueFd line;  // a socket to the process
  };
  bool fork_one();

  std::vector<Copy> copies_;
  bool in_rank_ = false;
};

}  // namespace starling
