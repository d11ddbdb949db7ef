// TempDir: a folder of the test's own, removed with all its content at the end.
#pragma once

#include <filesystem>
#include <string>

namespace starling {

class TempDir {
 public:
  // Made in the system's folder for such things. Throws Error when it cannot be made.
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The path of `name` inside, as a string.
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// A file as bytes, and back. Throw Error naming the path.
std::string read_bytes(const std::filesystem::path& path);
void write_bytes(const std::filesystem::path& path, const std::string& bytes);

}  // namespace starling
