// SIGTERM and Ctrl-C as a flag that training reads between steps.
#pragma once

#include <atomic>
#include <thread>

#include "starling/launch/signal_watch.h"

namespace starling {

// Takes the signals from the whole process while it lives: made before any other thread, which inherit its mask. The first
// signal sets the flag; a second Ctrl-C ends the process at once with status 130.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  const std::atomic<bool>& flag() const { return flag_; }

 private:
  SignalWatch signals_;
  std::atomic<bool> flag_{false};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace starling
