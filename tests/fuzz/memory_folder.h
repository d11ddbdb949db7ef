// MemoryFolder is a folder that exists only in memory, for readers of several files.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "tests/fuzz/input.h"

namespace starling {

// A new folder of this process. It is removed when the process ends normally. Not thread-safe.
class MemoryFolder {
 public:
  MemoryFolder() {
    std::string pattern = std::filesystem::exists("/dev/shm") ? "/dev/shm/fuzz-XXXXXX" : "/tmp/fuzz-XXXXXX";
    require_property(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~MemoryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Replaces a file.
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace starling
