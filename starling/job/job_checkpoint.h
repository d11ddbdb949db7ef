// Checkpoints of jobs that train no network: factorizations, topic models, sampling, sparse regression. Each
// rank writes a part of its own, so that no array passes another rank. Then rank 0 writes `job.json`, which
// names the step, the problem and the scalars. The checkpoint before stays until the new one is whole, and is
// removed then. Hashes show damage of a part or of `job.json`. Numbers have the byte order of the machine.
//
// Rank 0 holds the lock of its folder (folder_lock.h), so that a second run does not remove what the first
// one needs. If a rank of another host has a folder of its own, that folder has no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "starling/comm/group.h"
#include "starling/job/folder_lock.h"

namespace starling {

// CheckpointArrays are the named arrays of one rank's part.
class CheckpointArrays {
 public:
  // Copies `values` under a name, and replaces what had that name.
  template <typename T>
  void put(const std::string& name, std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    arrays_[name].assign(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  // Returns the array of a name. Errors: Error(kCheckpoint) if there is none, or if its size is no multiple
  // of sizeof(T).
  template <typename T>
  std::vector<T> get(const std::string& name) const {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::string& bytes = find(name, sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // Returns the content of a part's file. step, rank and ranks are stored in its head.
  std::string write(int64_t step, int rank, int ranks) const;
  // Reads the content of a part's file. `path` is for messages. Errors: Error(kCheckpoint) if the content is
  // damaged or has another head.
  static CheckpointArrays parse(const std::string& path, const std::string& content, int64_t step, int rank,
                                int ranks);

 private:
  const std::string& find(const std::string& name, size_t element_bytes) const;

  std::string path_;  // of the file, for messages
  std::map<std::string, std::string> arrays_;
};

// JobState is what `job.json` holds about a checkpoint.
struct JobState {
  int64_t step = 0;  // from 0 to 2^53, in the unit of the job, such as a sweep or an epoch
  int ranks = 1;     // that wrote the parts
  // The scalars of the job, as text. Write fp64 values with "{:a}", which is exact.
  std::map<std::string, std::string> values;
};

struct JobCheckpointOptions {
  std::string folder;  // empty: no checkpoints; find() returns nothing, and save() does nothing
  std::string job;     // the command, for example "topics"
  // What a resumed run must have in common with the run that wrote the checkpoint: the settings and a hash of
  // the data.
  std::map<std::string, std::string> problem;
  // Without it, find() takes the lock of the folder. With it, the run holds the lock of a folder around this
  // one, and save() calls it on rank 0 before it writes. It throws an Error if another run has that lock.
  std::function<void()> require_lock = {};
};

// JobCheckpoint reads and writes the checkpoints of a job. Every function is a collective over the group,
// except read(). If a rank has a fault, all ranks throw an Error with that rank's message.
class JobCheckpoint {
 public:
  // The group must outlive this object.
  JobCheckpoint(Group& group, JobCheckpointOptions options);

  // Takes the lock of the folder (JobCheckpointOptions::require_lock) and holds it as long as this object
  // lives. The other ranks wait for it without a limit of time. Removes what killed runs have left half
  // written.
  // Shows that the folder takes files. Returns the newest checkpoint, or nothing if the folder has none.
  // Errors: ConfigError if another run holds the lock, or if the checkpoint is of another job or problem;
  // Error(kCheckpoint) if `job.json` is damaged or missing beside parts, or if the folder takes no files.
  std::optional<JobState> find();
  // Reads the part of one rank. Ranks of other hosts need a shared folder, or their own parts. Errors:
  // Error(kCheckpoint) that names the file.
  CheckpointArrays read(const JobState& state, int rank) const;
  // Writes a checkpoint of a step, and removes the parts of this rank that belong to no checkpoint which may
  // still be needed. values: JobState::values, which only count on rank 0. Errors: Error(kCheckpoint), for
  // example on a full disk, or if another run has taken the lock. The checkpoint before stays.
  void save(int64_t step, const CheckpointArrays& arrays, const std::map<std::string, std::string>& values);

 private:
  std::string part_path(int64_t step, int rank, int ranks) const;
  std::optional<JobState> read_manifest() const;
  void write_manifest(const JobState& state) const;
  void remove_other_parts(int64_t step) const;
  void prepare();
  void require_lock() const;

  Group& group_;
  const JobCheckpointOptions options_;
  std::unique_ptr<FolderLock> lock_;  // of rank 0 after find()
  bool locked_ = false;               // on all ranks: rank 0 has the lock_
  int64_t last_ = -1;                 // the step of the newest whole checkpoint of as many ranks
};

// Makes the folder on rank 0, which then takes its lock (lock_checkpoints()). The other ranks wait for it
// without a limit of time. Returns the lock on rank 0, and null on the others. Collective. If rank 0 has a
// fault, all ranks throw an Error with its message.
std::unique_ptr<FolderLock> lock_together(Group& group, const std::string& folder);

// Calls `work` on every rank. If it throws an Error on a rank, all ranks throw an Error of that code and with
// the message of the first such rank. A CommError is rethrown at once. Collective.
void agree_on_success(Group& group, const std::function<void()>& work);

}  // namespace starling
