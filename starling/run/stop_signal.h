// Turns signals into requests that training reads between steps.
#pragma once

#include <atomic>
#include <optional>
#include <thread>

#include "starling/launch/signal_watch.h"
#include "starling/train/run_requests.h"

namespace starling {

// StopSignal receives the signals of the whole process during its lifetime. Make it before any other thread,
// because threads inherit its signal mask. SIGTERM, SIGINT and SIGHUP set the flag. If the flag is set
// already, SIGINT (Ctrl-C) ends the process at once with status 130. SIGUSR1 asks for a checkpoint, and
// SIGUSR2 for an early end in order. SIGTSTP (Ctrl-Z) has no effect.
class StopSignal {
 public:
  // Blocks the signals and starts the thread that waits for them. watches: false leaves the signals of the
  // process alone; only raise() then sets the flag.
  explicit StopSignal(bool watches = true);
  ~StopSignal();
  // True after the first signal that interrupts, or after raise(). Any thread may read the flag.
  const std::atomic<bool>& flag() const { return flag_; }
  // The requests of the signals so far.
  RunRequests& requests() { return requests_; }
  // Sets the flag as a signal does. Any thread may call this.
  void raise() { flag_ = true; }

 private:
  std::optional<SignalWatch> signals_;
  std::atomic<bool> flag_{false};
  RunRequests requests_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace starling
