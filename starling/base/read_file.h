// Reads a file with read(2). The streams of libstdc++ throw std::ios_base::failure when a disk or a
// network file system reports an error, and they do not say which error it was.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

namespace starling {

// The content of a file, or the reason why it cannot be read.
struct FileText {
  static constexpr int kNotRegular = -1;

  // Returns the error as text, for example "No such file or directory".
  std::string reason() const;

  std::string text;  // empty if there is an error
  int error = 0;     // errno of the failed call (ENOENT, EACCES, EIO, EISDIR, EFBIG, …), kNotRegular, or 0
};

// Reads a whole regular file into memory. Does not wait for a pipe that has the name of a file. Gives EFBIG
// if the file has more bytes than most_bytes. The function throws nothing but std::bad_alloc.
FileText read_file(const std::string& path, size_t most_bytes = std::numeric_limits<size_t>::max());

// Like read_file(), but reads anything up to the size, for example a pipe of the shell: -c <(command). Waits
// for its writer. Gives EFBIG for more bytes, which a device may have without end.
FileText read_file_or_pipe(const std::string& path, size_t most_bytes = size_t{64} << 20);

}  // namespace starling
