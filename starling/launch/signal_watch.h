// SignalWatch makes signals available through a descriptor.
#pragma once

#include <signal.h>

#include <optional>

#include "starling/base/unique_fd.h"

namespace starling {

// Resets SIGCHLD to its default, blocks SIGINT, SIGTERM, SIGHUP and SIGTSTP, and reports them through fd().
// With `requests` it also blocks and reports SIGUSR1 and SIGUSR2. The signals are blocked in the calling
// thread and in threads that it starts later. SIGHUP and SIGTSTP are left alone if they are ignored, as under
// nohup. SIGCHLD needs its default because a parent may have set it to be ignored, and then waiting for
// children fails. The destructor discards pending signals and restores the mask and SIGCHLD. Errors:
// Error(kInternal) if the system has no descriptors left.
class SignalWatch {
 public:
  explicit SignalWatch(bool requests = false);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // The descriptor, which is readable when a signal is pending.
  int fd() const { return fd_.get(); }
  // Returns the next pending signal, if any.
  std::optional<int> take();
  // Returns the signal mask before the constructor changed it.
  const sigset_t& mask_before() const { return before_; }

 private:
  UniqueFd fd_;
  sigset_t before_{};
  struct sigaction child_before_{};
};

}  // namespace starling
