#include "starling/run/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

namespace starling {

StopSignal::StopSignal(bool watches) {
  if (!watches) return;
  signals_.emplace(/*requests=*/true);
  thread_ = std::thread([this] {
    while (!ending_) {
      pollfd descriptor{signals_->fd(), POLLIN, 0};
      ::poll(&descriptor, 1, 50);  // wakes up regularly to notice the destructor
      while (const auto signal = signals_->take()) {
        if (*signal == SIGCHLD) continue;
        if (*signal == SIGTSTP) {  // Ctrl-Z, which reaches a process that no launcher has started
          ::kill(::getpid(), SIGSTOP);
        } else if (*signal == SIGUSR1) {
          requests_.save = true;
        } else if (*signal == SIGUSR2) {
          requests_.end = true;
        } else {
          requests_.signal = *signal;
          if (flag_.exchange(true) && *signal == SIGINT) ::_exit(128 + SIGINT);
        }
      }
    }
  });
}

StopSignal::~StopSignal() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace starling
