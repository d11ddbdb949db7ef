// The folder of a queue: state, locks and the files of its jobs.
//
//   DIR/queue.sqlite   the state (queue_store.h)
//   DIR/daemon.lock    locked by the daemon that runs
//   DIR/jobs/ID/       output, claims and ends of one job (keeper.h)
//
// Whoever may write the state decides what the daemon executes. The folder therefore belongs to one account
// and has the mode 0700. Clients open the state themselves: the kernel's check of that mode is the whole
// access control, so there is no protocol that could have a hole. Users that do not trust each other need a
// scheduler that runs jobs under their own accounts (docs/how-to/slurm.md).
#pragma once

#include <cstdint>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

// Returns the name of a file system that may be on another host, by its number in statfs(2), or null. Locks
// and process numbers hold for one host only, so a queue must not be there.
const char* remote_file_system(int64_t type);

class QueueFolder {
 public:
  // `creates`: makes the folder `path` if it is missing. Throws ConfigError if the folder belongs to another
  // account, is open to other accounts, is missing, or may be on another host.
  QueueFolder(const std::string& path, bool creates);

  const std::string& path() const { return path_; }
  std::string database() const { return path_ + "/queue.sqlite"; }
  // Returns the folder of a job. make_job_folder() makes it if it is missing, and throws Error (kCheckpoint).
  std::string job_folder(int64_t id) const;
  void make_job_folder(int64_t id) const;

 private:
  std::string path_;
};

// The lock that only one daemon of a folder holds. The kernel releases it when the process ends. A process
// that fork() makes does not have the lock.
class DaemonLock {
 public:
  // Throws ConfigError that names the process that holds the lock.
  explicit DaemonLock(const QueueFolder& folder);

 private:
  UniqueFd fd_;
};

}  // namespace starling
