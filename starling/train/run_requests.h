// The requests that a running training receives from outside.
#pragma once

#include <atomic>

namespace starling {

// RunRequests holds the requests that signals bring to the process of a rank (run/stop_signal.h). Each rank
// tells all ranks of its requests in its next step, so that all of them act after the same step. Any thread
// may read and write the members.
struct RunRequests {
  std::atomic<int> signal{0};     // the signal that interrupted this process, 0 if there was none
  std::atomic<bool> save{false};  // write a checkpoint and go on; the training loop clears it
  std::atomic<bool> end{false};   // end early, but in order: evaluate and report as after the last step
};

}  // namespace starling
