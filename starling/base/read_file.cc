#include "starling/base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "starling/base/unique_fd.h"

namespace starling {

FileText read_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return {"", errno};
  FileText file;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return {"", errno};
    if (n == 0) return file;
    file.text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace starling
