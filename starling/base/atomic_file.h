// AtomicFile writes a file whose path holds either its old or its whole new content, also after a crash.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "starling/base/unique_fd.h"

namespace starling {

// The content is written beside the path under a temporary name. commit() fsyncs the file, renames it onto
// the path and fsyncs the folder. Without commit(), the destructor removes the temporary file. Errors: Error
// (kCheckpoint) with the path and the cause, such as a full disk; the old file stays as it was. If the last
// fsync fails, the new content is at the path, but a crash of the machine may undo that. Not thread-safe.
// Several AtomicFiles may write one path at once: the last commit stays.
class AtomicFile {
 public:
  // Creates the temporary file.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends `size` bytes.
  void write(const void* bytes, size_t size);
  // Makes the new content visible at the path.
  void commit();

 private:
  std::string path_;
  std::string temporary_;  // empty after commit()
  UniqueFd fd_;
};

// Makes the folder of checkpoints, and the folders around it, if there is none. Errors: Error(kCheckpoint).
void make_checkpoint_folder(const std::string& folder);

// Removes the temporary files of killed processes (AtomicFile) from a folder, if their names have one of the
// prefixes. No process may be writing such a file. What cannot be removed stays.
void remove_temporary_files(const std::string& folder, const std::vector<std::string>& prefixes);

}  // namespace starling
