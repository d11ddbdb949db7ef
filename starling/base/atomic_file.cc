#include "starling/base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "starling/base/error.h"

namespace starling {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  const char* remedy = "";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    remedy = "; free space or give another folder (an older file of this name is unchanged)";
  } else if (error == ENOENT) {
    remedy = "; make the folder first";
  }
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("{}: cannot {}: {}{}", path, what, std::strerror(error), remedy));
}

// Creates a new file beside `path` and stores its name in `name`.
int create_beside(const std::string& path, std::string& name) {
  for (int attempt = 0;; ++attempt) {
    name = fmt::format("{}.{}-{}.tmp", path, ::getpid(), attempt);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
    if (errno != EEXIST || attempt == 1000) fail(path, "create a file beside it", errno);
  }
}

}  // namespace

void make_checkpoint_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("{}: the folder cannot be made: {}; give a folder that this user may make and write",
                    folder, error.message()));
}

void remove_temporary_files(const std::string& folder, const std::vector<std::string>& prefixes) {
  std::vector<std::filesystem::path> left;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto begins = [&](const std::string& prefix) { return name.starts_with(prefix); };
    if (name.ends_with(".tmp") && std::any_of(prefixes.begin(), prefixes.end(), begins))
      left.push_back(it->path());
  }
  for (const std::filesystem::path& path : left) std::filesystem::remove(path, error);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  struct stat info;
  if (::stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: is not a regular file; give the name of a file", path_));
  }
  std::string name;
  fd_.reset(create_beside(path_, name));
  temporary_ = std::move(name);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* bytes, size_t size) {
  const char* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t n = ::write(fd_.get(), next, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(path_, "write", n < 0 ? errno : ENOSPC);
    next += n;
    size -= static_cast<size_t>(n);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0) fail(path_, "write to the disk", errno);
  if (::close(fd_.release()) != 0) fail(path_, "write to the disk", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "rename the new file onto it", errno);
  temporary_.clear();
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  const UniqueFd dir(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir.valid() || ::fsync(dir.get()) != 0) fail(path_, "write its folder to the disk", errno);
}

}  // namespace starling
