// AtomicFile: a file whose path holds either its old or its whole new content, also after a crash.
#pragma once

#include <cstddef>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

// Written beside its place under a name of its own; commit() fsyncs it, renames it onto the path and fsyncs
// the folder. Without commit() the destructor removes it. Errors: Error (kCheckpoint) with the path and the
// cause (disk full); the old file stays as it was. Not thread-safe; several at once on one path are fine, the
// last commit stays.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, size_t size);
  void commit();

 private:
  std::string path_;
  std::string temporary_;  // empty after commit()
  UniqueFd fd_;
};

}  // namespace starling
