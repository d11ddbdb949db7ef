// UcxProgress: one worker of UCX, shared by the connections of a group, and who moves it. UCX moves nothing by itself: every step of an
// endpoint progresses the worker for all of them, and a thread here does so 50 times a second for what is left over when nobody
// steps (the rest of a message that UCX has taken but the network has not, errors).
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/net/ucx/plugin.h"

namespace starling {

// Where a worker stands when a step of it is over.
enum class UcxPace {
  kDone,    // what was waited for is there
  kAsleep,  // nothing moves: event_fd() of the worker tells of the next thing that does
  kBusy     // there is more to progress
};

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
  // A number that no other connection of this worker has. With the mutex held.
  uint32_t next_connection() { return connections_++; }

  // Where UCX does not let go of memory: over TCP nothing but its progress writes there, so that has an end. The worker moves nothing any
  // more and is never destroyed. `why` is for whoever still wants to use it. With the mutex held.
  void give_up(const CommError& why);
  // Then nothing may be asked of the worker. With the mutex held.
  const std::optional<CommError>& given_up() const { return given_up_; }

  // Progresses until `done()`, until nothing moves, or for kMostCalls, for others want the worker too. With the mutex held.
  template <typename Done>
  UcxPace until(const Done& done) {
    for (int calls = 0; calls < kMostCalls; ++calls) {
      if (done()) return UcxPace::kDone;
      if (!worker_->progress() && worker_->arm()) return done() ? UcxPace::kDone : UcxPace::kAsleep;
    }
    return UcxPace::kBusy;
  }

 private:
  static constexpr int kMostCalls = 1000;
  void tick();

  std::shared_ptr<UcxLibrary> library_;
  std::unique_ptr<UcxWorker> worker_;
  std::mutex mutex_;
  std::optional<CommError> given_up_;  // guarded by mutex_
  uint32_t connections_ = 0;
  bool ending_ = false;  // guarded by ending_mutex_
  std::mutex ending_mutex_;
  std::condition_variable ending_told_;
  std::thread ticking_;
};

}  // namespace starling
