#include "starling/run/stop_signal.h"

#include <poll.h>
#include <unistd.h>

namespace starling {

StopSignal::StopSignal() {
  thread_ = std::thread([this] {
    while (!ending_) {
      pollfd descriptor{signals_.fd(), POLLIN, 0};
      ::poll(&descriptor, 1, 50);  // the destructor is seen at the next turn
      while (const auto signal = signals_.take()) {
        if (*signal == SIGTSTP || *signal == SIGCHLD) continue;
        if (flag_.exchange(true) && *signal == SIGINT) ::_exit(130);
      }
    }
  });
}

StopSignal::~StopSignal() {
  ending_ = true;
  thread_.join();
}

}  // namespace starling
