// FolderLock keeps two runs from writing into one folder, and tells a former holder that it has been
// replaced. The folder is the run folder of `starling train`, or the folder with the checkpoints of another
// job.
//
// Each holder has an epoch, a number that is larger than that of every holder before. It has nothing to do
// with passes over the data. The file FOLDER/lock/epoch-000003 names the holder of epoch 3: its host,
// process, incarnation (the start of a run) and a random token. The holder of the highest epoch holds the
// lock. A file of a new epoch appears by link(), which fails if the file exists, so two processes never get
// one epoch, also over NFS. The holder changes the file's time regularly to show that it lives.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"

namespace starling {

// Names a holder of a lock.
struct LockHolder {
  int64_t epoch = 0;        // 0: there is none
  std::string incarnation;  // empty if the file of the holder could not be read
  bool lives = false;       // it is a process of this host that runs and has not released the lock
  // Compares what names the holder.
  bool operator==(const LockHolder& other) const {
    return epoch == other.epoch && incarnation == other.incarnation;
  }
};

// The lock could not be written, for example because the disk is full. As far as the folder could be read, no
// other run has used it since FolderLockOptions::known.
class LockNotWritten : public Error {
 public:
  explicit LockNotWritten(const std::string& message) : Error(ErrorCode::kCheckpoint, message) {}
};

// How a lock is taken and held.
struct FolderLockOptions {
  std::string flag = "--run-dir";         // that names the folder, for messages
  std::chrono::milliseconds beat{1'000};  // period of the signs of life
  std::chrono::milliseconds silence{
      15'000};  // a holder on another host that shows no sign of life for so long counts as dead
  std::chrono::milliseconds grace{5'000};  // time that a living holder gets to end
  // For a rank that leads because the former leader was lost: ended_lock_holder() when the run began. If the
  // last holder is neither this one nor this start of the run, the files in the folder are not those of this
  // run. The lock is then refused, also if the other run has ended. Without a value, a holder of any run that
  // has ended is replaced.
  std::optional<LockHolder> known = {};
  std::function<void(const std::string& text)> say = {};  // receives why the constructor waits
  std::function<void()> replaced = {};  // called once, on a thread, if another process takes the lock
};

// A lock that this process holds. All methods are thread-safe.
class FolderLock {
 public:
  // Takes the lock of the folder, which must exist. `incarnation` names the start of the run. A holder
  // that has ended is replaced at once if it ran on this host. If it ran elsewhere, the constructor waits
  // until it has shown no sign of life for options.silence. A holder of an equal incarnation is always
  // replaced: it is this run's former leader. Errors: ConfigError that names the holder and the remedy if the
  // holder lives, or by options.known; Error (kCheckpoint) if the files cannot be listed or written, or if
  // the file of a holder that may not be options.known cannot be read.
  FolderLock(const std::filesystem::path& folder, std::string incarnation, FolderLockOptions options = {});
  // Releases the lock if this process still holds it.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  int64_t epoch() const { return epoch_; }
  LockHolder holder() const { return {epoch_, incarnation_, true}; }
  // Reads the folder and returns true unless another process has taken the lock.
  bool held() const;
  // Throws an error that names the new holder if another process has taken the lock. It is a ConfigError if
  // the holder belongs to another start of a run. It is an Error (kCheckpoint) for another rank of this one.
  void require() const;

 private:
  int64_t await_free();
  void take();
  void beat();

  const std::filesystem::path folder_;
  const std::string incarnation_;
  const FolderLockOptions options_;
  const std::string token_;
  int64_t epoch_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

// Takes the lock of a folder with checkpoints (--checkpoint). The folder must exist. Says on standard error
// why it waits. Errors: those of FolderLock.
std::unique_ptr<FolderLock> lock_checkpoints(const std::string& folder);

// Throws Error (kCheckpoint), which names the new holder, if the last holder of the folder's lock is another
// one than `known`. Ranks that do not hold the lock of their run pass what last_lock_holder() returned when
// the run had the lock. What cannot be read now shows no other holder.
void require_lock_holder(const std::filesystem::path& folder, const LockHolder& known);

// Returns the holder of the highest epoch in the run folder. Errors: Error (kCheckpoint) if the folder of the
// locks cannot be listed.
LockHolder last_lock_holder(const std::filesystem::path& run_dir);

// Returns last_lock_holder(), or LockHolder{}, which no holder equals, if that one lives or the folder of the
// locks cannot be listed.
LockHolder ended_lock_holder(const std::filesystem::path& run_dir);

// Returns a new random name for one start of a run: 32 hexadecimal digits.
std::string new_incarnation();

}  // namespace starling
