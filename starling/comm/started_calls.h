// StartedCalls executes the operations of a group in the background, and executes blocking ones in the
// calling thread if it may. The implementations of Group use it.
//
// Collectives share one lane. Messages to a peer share a lane, and messages from a peer with one tag share a
// lane (comm/work_lanes.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "starling/comm/group.h"
#include "starling/comm/work_lanes.h"

namespace starling {

// Progress says for whom an operation is executed, which determines how it waits.
enum class Progress : uint8_t {
  kCaller,      // the thread that waits for it, or a thread of the group on its behalf
  kBackground,  // a thread of the group, while other threads of the process may compute
};

// Threads: end() is called by one thread at the end. All other functions may be called from any thread.
class StartedCalls {
 public:
  // Executes one operation and blocks until it is done. StartedCalls calls it from several threads at the
  // same time.
  using Execute = std::function<void(const Call&, Progress)>;
  // `what` names the group in errors.
  StartedCalls(const std::string& what, Execute execute);

  // Starts the operation. Errors: CommError after end(), or if a thread cannot be started.
  WorkPtr start(const Call& call) { return start(call, Progress::kBackground); }
  // Executes the operation and returns when it is completed. The calling thread executes it, unless a started
  // operation of its lane is not done yet.
  void run(const Call& call);
  // Returns true while a started operation is not completed.
  bool pending() const { return pending_.load(std::memory_order_acquire) > 0; }
  // Ends the threads. Operations that have not begun complete with a CommError. Waits for the operations in
  // progress, which must end by themselves (Group::abort wakes them).
  void end() { lanes_.stop(); }

 private:
  WorkPtr start(const Call& call, Progress progress);

  const Execute execute_;
  std::atomic<int> pending_{0};  // operations that start() has started and that are not done yet
  WorkLanes lanes_;
};

}  // namespace starling
