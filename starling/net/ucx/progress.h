// UcxProgress: one worker of UCX, which the connections of a group share, and the thread that progresses it.
//
// UCX moves nothing by itself. Every step of an endpoint progresses the worker for all endpoints. The thread
// of UcxProgress progresses it 50 times a second, for what is left over when no endpoint steps. Examples are
// errors, and the rest of a message that UCX has taken but the network has not.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/net/ucx/ucx_plugin.h"

namespace starling {

// UcxPace says how far a worker is at the end of a step.
enum class UcxPace {
  kDone,    // the awaited event has happened
  kAsleep,  // nothing moves; the worker's event_fd() reports the next event
  kBusy     // there is more to progress
};

// UcxProgress owns the worker.
class UcxProgress {
 public:
  // The library is kept until the worker has been destroyed.
  UcxProgress(std::shared_ptr<UcxLibrary> library, std::unique_ptr<UcxWorker> worker);
  ~UcxProgress();
  UcxProgress(const UcxProgress&) = delete;
  UcxProgress& operator=(const UcxProgress&) = delete;

  // Hold it while using the worker or a transfer.
  std::mutex& mutex() { return mutex_; }
  // The worker.
  UcxWorker& worker() { return *worker_; }
  // Returns a number that no other connection of this worker has. The caller holds the mutex.
  uint32_t next_connection() { return connections_++; }

  // Stops the worker for good, because UCX does not let go of memory. The worker is then never progressed or
  // destroyed. Over TCP only progress writes to the memory, so this ends all writes. Later users get a copy
  // of `why` as an exception. The caller holds the mutex.
  void give_up(const CommError& why);
  // The reason, if the worker was given up. The worker must not be used then. The caller holds the mutex.
  const std::optional<CommError>& given_up() const { return given_up_; }

  // Progresses the worker until `done()` is true, until nothing moves, or kMostCalls times, because other
  // threads want the worker, too. The caller holds the mutex.
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
