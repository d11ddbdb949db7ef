// LineReader splits the data from a pipe into lines.
#pragma once

#include <functional>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

class LineReader {
 public:
  using Take = std::function<void(const std::string& line)>;  // without the newline

  LineReader() = default;
  // A line of more than `longest` bytes is passed on in pieces.
  explicit LineReader(UniqueFd fd, size_t longest = 64 * 1024) : fd_(std::move(fd)), longest_(longest) {}

  int fd() const { return fd_.get(); }
  bool open() const { return fd_.valid(); }
  // Passes on the complete lines that are available now, without waiting. A call reads at most 256 KiB, so
  // that one pipe does not delay the other pipes. At the end of the pipe, it also passes on an unfinished
  // last line and closes the pipe.
  void read(const Take& take);
  // Reads the available data and closes the pipe.
  void finish(const Take& take);

 private:
  bool read_some(const Take& take);

  UniqueFd fd_;
  size_t longest_ = 0;
  std::string partial_;
};

}  // namespace starling
