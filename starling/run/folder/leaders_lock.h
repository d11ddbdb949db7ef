// LeadersLock is the lock of the run folder on the rank that leads the run.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "starling/job/folder_lock.h"

namespace starling {

// A rank may begin to lead because the former leader was lost. It goes on even if the lock cannot be written,
// for example because the disk is full. Until it has the lock, it writes nothing into the run folder.
// All methods are thread-safe.
class LeadersLock {
 public:
  // Takes the lock. Errors: those of FolderLock.
  using Take = std::function<std::unique_ptr<FolderLock>()>;

  // Takes the lock, which this process has not taken before. Errors: those of `take`.
  void take(Take take);
  // Takes the lock like take(), but returns the message if its files cannot be written; require() then tries
  // again. Returns an empty string if this process has the lock. Errors: ConfigError if another run has it.
  std::string try_take(Take take);
  // Returns true after the first call of take() or try_take(), also if that call failed.
  bool wanted() const;
  // Returns true if this process has the lock, and false if another process has taken it or it was never had.
  bool held() const;
  // Makes sure that this process has the lock, and takes it if it was wanted and never had. Does nothing if
  // it was never wanted. Errors: those of FolderLock and of FolderLock::require(). A ConfigError is final:
  // later calls throw it again at once.
  void require();
  // Returns the epoch of the lock, or 0 without a lock.
  int64_t epoch() const;

 private:
  std::shared_ptr<FolderLock> lock() const;

  std::mutex taking_;           // held while the lock is taken, which may last for seconds
  std::exception_ptr refused_;  // by `taking_`
  mutable std::mutex mutex_;    // protects what follows
  Take take_;
  std::shared_ptr<FolderLock> lock_;
};

}  // namespace starling
