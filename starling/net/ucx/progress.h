// UcxProgress: one worker of UCX, shared by the connections of a group, and who moves it. UCX moves nothing by itself: every step of an
// endpoint progresses the worker for all of them, and a thread here does so 50 times a second for what is left over when nobody
// steps (the rest of a message that UCX has taken but the network has not, errors).
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "starling/base/unique_fd.h"
#include "starling/net/deadline.h"
#include "starling/net/ucx/plugin.h"

namespace starling {

class UcxProgress {
 public:
  // library: kept until the worker has gone.
  UcxProgress(std::shared_ptr<UcxLibrary> library, std::unique_ptr<UcxWorker> worker);
  ~UcxProgress();
  UcxProgress(const UcxProgress&) = delete;
  UcxProgress& operator=(const UcxProgress&) = delete;

  // Held while the worker or a transfer is touched.
  std::mutex& mutex() { return mutex_; }
  UcxWorker& worker() { return *worker_; }

  // Progresses until `done()`, or until nothing moves: then event_fd() of the worker tells of the next thing that does, and the
  // answer is false. With the mutex held.
  template <typename Done>
  bool until(const Done& done) {
    for (int busy = 0;; ++busy) {
      if (done()) return true;
      if (worker_->progress()) {
        busy = 0;
      } else if (worker_->arm() || busy == kMostBusy) {
        return false;  // where it moves nothing and cannot be armed, the tick goes on
      }
    }
  }
  // As until(), but waits for it until `deadline`. With the mutex held, which it gives up meanwhile; for the ends of connections.
  template <typename Done>
  bool wait(std::unique_lock<std::mutex>& lock, const Done& done, Deadline deadline) {
    while (!until(done)) {
      if (has_passed(deadline)) return false;
      lock.unlock();
      sleep(deadline);
      lock.lock();
    }
    return true;
  }

 private:
  static constexpr int kMostBusy = 1000;
  void sleep(Deadline deadline);
  void tick();

  const std::shared_ptr<UcxLibrary> library_;
  const std::unique_ptr<UcxWorker> worker_;
  std::mutex mutex_;
  bool ending_ = false;  // guarded by ending_mutex_
  std::mutex ending_mutex_;
  std::condition_variable ending_told_;
  std::thread ticking_;
};

}  // namespace starling
