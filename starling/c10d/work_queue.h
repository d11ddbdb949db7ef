// WorkQueue: operations carried out one at a time in the order of the calls, by a thread of its own or, where nothing
// is pending and the caller would wait anyway, by the caller.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "starling/c10d/work.h"

namespace starling {

struct Job {
  std::function<void()> body;  // blocks until the operation is done; may throw
  c10::intrusive_ptr<StarlingWork> work;
};

// Threads: all functions but stop() and the destructor may be called from any thread.
class WorkQueue {
 public:
  WorkQueue();
  ~WorkQueue();  // stop()
  WorkQueue(const WorkQueue&) = delete;

  // Carries the job out after those before it and completes its work. The thread starts at the first call.
  // CommError after stop().
  void submit(Job job);
  // If no other job is pending: carries the job out and completes its work before returning. Else as submit().
  void run(Job job);
  // True while a job is queued or being carried out.
  bool busy() const;
  // Ends the thread; jobs that have not begun complete with a CommError. Waits for the job in progress, which must come to
  // its end by itself (Group::abort wakes it). May be called from a callback of a work's future.
  void stop();

 private:
  struct State;
  static void carry_out_all(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared with the thread, which may outlive the queue by a callback
  std::thread thread_;                  // guarded by the state's mutex until stop()
};

}  // namespace starling
