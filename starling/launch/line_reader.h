// Splits what comes through a pipe into lines.
#pragma once

#include <functional>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

class LineReader {
 public:
  using Take = std::function<void(const std::string& line)>;  // without its newline

  LineReader() = default;
  // longest: a longer line is handed on in pieces.
  explicit LineReader(UniqueFd fd, size_t longest = 64 * 1024) : fd_(std::move(fd)), longest_(longest) {}

  int fd() const { return fd_.get(); }
  bool open() const { return fd_.valid(); }
  // Hands on every whole line that is there now (at most 256 KiB a call, so that no pipe starves the others); at the end of the pipe
  // the unfinished last line too, and closes it. Never waits.
  void read(const Take& take);
  // Reads what is left now, then closes.
  void finish(const Take& take);

 private:
  bool read_some(const Take& take);

  UniqueFd fd_;
  size_t longest_ = 0;
  std::string partial_;
};

}  // namespace starling
