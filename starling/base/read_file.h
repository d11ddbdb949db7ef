// Reads a file with read(2). The streams of libstdc++ throw std::ios_base::failure when a disk or a
// network file system reports an error, and they do not say which error it was.
#pragma once

#include <string>

namespace starling {

// The content of a file, or the reason why it cannot be read.
struct FileText {
  std::string text;  // empty if there is an error
  int error = 0;     // errno of the failed call (ENOENT, EACCES, EIO, EISDIR, …), or 0
};

// Reads a whole file into memory. The function throws nothing but std::bad_alloc.
FileText read_file(const std::string& path);

}  // namespace starling
