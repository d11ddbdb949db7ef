// Signals as a descriptor to poll.
#pragma once

#include <signal.h>

#include <optional>

#include "starling/base/unique_fd.h"

namespace starling {

// Gives SIGCHLD its default (ignored, as some parents leave it, children could not be waited for). Blocks SIGINT, SIGTERM, SIGHUP and SIGTSTP in the calling thread (and in those that it starts from now on) and makes them readable;
// SIGHUP and SIGTSTP only where the parent did not have them ignored (nohup). The destructor discards what nobody took and restores
// mask and SIGCHLD.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  // The next signal that came, if any.
  std::optional<int> take();
  // The mask before.
  const sigset_t& mask_before() const { return before_; }

 private:
  UniqueFd fd_;
  sigset_t before_{};
  struct sigaction child_before_{};
};

}  // namespace starling
