#include "starling/base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>

#include "starling/base/unique_fd.h"

namespace starling {

namespace {

FileText read_all(const UniqueFd& fd, size_t most_bytes) {
  FileText file;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return {"", errno};
    if (n == 0) return file;
    if (static_cast<size_t>(n) > most_bytes - file.text.size()) return {"", EFBIG};
    file.text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

std::string FileText::reason() const {
  return error == kNotRegular ? "it is not a regular file" : std::generic_category().message(error);
}

FileText read_file(const std::string& path, size_t most_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return {"", errno};
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return {"", errno};
  if (S_ISDIR(info.st_mode)) return {"", EISDIR};
  if (!S_ISREG(info.st_mode)) return {"", FileText::kNotRegular};
  return read_all(fd, most_bytes);
}

FileText read_file_or_pipe(const std::string& path, size_t most_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return {"", errno};
  return read_all(fd, most_bytes);
}

}  // namespace starling
