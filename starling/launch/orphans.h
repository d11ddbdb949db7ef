// Orphans ends the processes that ranks have started and left behind.
//
// The process becomes the parent of every descendant whose parent has ended (PR_SET_CHILD_SUBREAPER). So it
// finds these descendants, also if they have moved to another process group or session. If the process itself
// is killed by SIGKILL, the kernel ends the ranks, but not the processes that they have left behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>

namespace starling {

class Orphans {
 public:
  // Makes the process the parent of orphans. The children that it has already are none.
  Orphans();
  // Undoes what the constructor did. Orphans that are left stay children.
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // Ends all orphans and their descendants and reaps them: by SIGTERM, and by SIGKILL if they still run after
  // `grace`. Every child of this process that the constructor did not see counts as an orphan, so that the
  // ranks must have been reaped before. end_all() returns after twice `grace` at the latest, even if
  // processes are left that this process has no permission to end. It does not throw.
  void end_all(std::chrono::milliseconds grace = std::chrono::seconds(2)) const;

 private:
  std::set<pid_t> left_behind() const;

  std::set<pid_t> earlier_;
  bool was_set_ = false;
};

}  // namespace starling
