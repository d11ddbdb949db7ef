// TempDir: a folder for one test. It is removed with all its contents at the end.
#pragma once

#include <filesystem>
#include <string>

namespace starling {

// TempDir makes and removes the folder.
class TempDir {
 public:
  // Makes the folder in the system's folder for temporary files. Errors: Error if that is impossible.
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // The path of the folder.
  const std::filesystem::path& path() const { return path_; }
  // Returns the path of `name` in the folder.
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Returns the bytes of a file. Errors: Error that names the path.
std::string read_bytes(const std::filesystem::path& path);
// Writes a file. Errors: Error that names the path.
void write_bytes(const std::filesystem::path& path, const std::string& bytes);

}  // namespace starling
