// WorkLanes executes jobs on threads of its own. The jobs of one lane are executed one after another, in the
// order of the calls. Jobs of submit() are also completed in this order. Different lanes progress at the same
// time.
//
// A lane with waiting jobs occupies a thread until it has none left. A thread without a lane sleeps and later
// serves any lane. At most kIdleThreads threads sleep; further ones end.
#pragma once

#include <compare>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace starling {

// Lane names a lane. A lane needs no preparation.
struct Lane {
  int peer = -1;     // the rank that the jobs concern, or -1 for all
  int64_t kind = 0;  // tells the lanes of a peer apart; the user of WorkLanes chooses the numbers
  // Compares peer, then kind.
  auto operator<=>(const Lane&) const = default;
};

// LaneJob is one operation.
struct LaneJob {
  std::function<void()> body;  // blocks until the operation is done; may throw
  // Called once, with what body() has thrown, or null. If the job never begins, it gets a CommError (stop()).
  std::function<void(std::exception_ptr)> complete;
};

// Threads: stop() and the destructor are called by one thread at the end. All other functions may be called
// from any thread.
class WorkLanes {
 public:
  static constexpr size_t kIdleThreads = 4;

  // `ended` is the message of the error after close(), for example "the group 'world' has ended".
  explicit WorkLanes(std::string ended);
  // Calls stop().
  ~WorkLanes();
  WorkLanes(const WorkLanes&) = delete;

  // Executes the job after the earlier jobs of the lane. Errors: CommError after close(), or if a thread is
  // needed and cannot be started. The job is not executed then.
  void submit(const Lane& lane, LaneJob job);
  // Like submit({body, complete}). But if the lane has no job that waits or is in progress, the calling
  // thread calls body() and complete() before run() returns. complete() may then run beside the completion of
  // the previous job and beside the next job. Errors: as submit().
  template <typename Body, typename Complete>
  void run(const Lane& lane, Body body, Complete complete) {
    Queue* const queue = try_enter(lane);
    if (queue == nullptr) return submit(lane, {std::move(body), std::move(complete)});
    std::exception_ptr error;
    try {
      body();
    } catch (...) {  // complete() receives it
      error = std::current_exception();
    }
    leave(lane, *queue);
    complete(std::move(error));
  }
  // Returns true while a job of the lane waits or is in progress. A job whose complete() is being called is
  // no longer in progress.
  bool busy(const Lane& lane) const;
  // Returns true while a job of any lane waits or is in progress.
  bool busy() const;
  // Makes later calls of submit() and run() throw.
  void close();
  // Calls close(), waits for the jobs in progress, which must end by themselves (Group::abort wakes them),
  // and ends the threads. The calling thread completes the jobs that have not begun, with a CommError. stop()
  // may be called from complete().
  void stop();
  // Returns the number of threads, for tests.
  size_t threads() const;

 private:
  struct State;
  struct Queue;
  // Occupies the lane for the calling thread. Returns null if the lane is busy.
  Queue* try_enter(const Lane& lane);
  void leave(const Lane& lane, Queue& queue);
  static void serve(const std::shared_ptr<State>& state);

  // Shared with the threads. A thread that calls stop() from complete() outlives this object.
  const std::shared_ptr<State> state_;
};

}  // namespace starling
