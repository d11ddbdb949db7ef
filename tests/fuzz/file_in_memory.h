// FileInMemory is a file that exists only in memory, for parsers that read a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/input.h"

namespace starling {

// One file of this process. Not thread-safe.
class FileInMemory {
 public:
  FileInMemory() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    require_property(fd_ >= 0);
  }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;

  // Replaces the content and returns the path.
  const std::string& with(const std::string& bytes) {
    const auto size = static_cast<off_t>(bytes.size());
    require_property(::ftruncate(fd_, size) == 0 && ::pwrite(fd_, bytes.data(), bytes.size(), 0) == size);
    return path_;
  }

 private:
  int fd_;
  std::string path_;
};

}  // namespace starling
