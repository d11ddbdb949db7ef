// RunLock keeps two runs from writing into one run folder, and tells a former holder that it has been
// replaced.
//
// Each holder has an epoch, a number that is larger than that of every holder before. It has nothing to do
// with passes over the data. The file RUN/lock/epoch-000003 names the holder of epoch 3: its host, process,
// incarnation (the start of a run) and a random token. The holder of the highest epoch holds the lock. A file
// of a new epoch appears by link(), which fails if the file exists, so two processes never get one epoch,
// also over NFS. The holder changes the file's time regularly to show that it lives.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace starling {

// How a lock is taken and held.
struct RunLockOptions {
  std::chrono::milliseconds beat{1'000};  // period of the signs of life
  std::chrono::milliseconds silence{
      15'000};  // a holder on another host that shows no sign of life for so long counts as dead
  std::chrono::milliseconds grace{5'000};  // time that a living holder gets to end
  // Whether the holder was the former leader of this run. The lock is refused if the last holder was another
  // start of a run, also if that has ended, because the files in the folder are then not those of this run.
  bool takes_over = false;
  std::function<void(const std::string& text)> say = {};  // receives why the constructor waits
  std::function<void()> replaced = {};  // called once, on a thread, if another process takes the lock
};

// A lock that this process holds. All methods are thread-safe.
class RunLock {
 public:
  // Takes the lock of the run folder, which must exist. `incarnation` names the start of the run. A holder
  // that has ended is replaced at once if it ran on this host. If it ran elsewhere, the constructor waits
  // until it has shown no sign of life for options.silence. A holder of an equal incarnation is always
  // replaced: it is this run's former leader. Errors: ConfigError that names the holder and the remedy if the
  // holder lives, or by options.takes_over; Error (kCheckpoint) if the files cannot be written, or if
  // options.takes_over and the last holder's file cannot be read.
  RunLock(const std::filesystem::path& run_dir, std::string incarnation, RunLockOptions options = {});
  // Releases the lock if this process still holds it.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  int64_t epoch() const { return epoch_; }
  // Reads the folder and returns true unless another process has taken the lock.
  bool held() const;
  // Throws Error (kCheckpoint) that names the new holder if another process has taken the lock.
  void require() const;

 private:
  int64_t await_free();
  void take();
  void beat();

  const std::filesystem::path folder_;
  const std::string incarnation_;
  const RunLockOptions options_;
  const std::string token_;
  int64_t epoch_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

// Returns a new random name for one start of a run: 32 hexadecimal digits.
std::string new_incarnation();

}  // namespace starling
