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
  // fd: non-blocking.
  explicit LineReader(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool open() const { return fd_.valid(); }
  // Hands on every whole line that is there now (at most 256 KiB a call, so that no pipe starves the others); at the end of the pipe
  // the unfinished last line too, and closes it. A line longer than 64 KiB is handed on in pieces.
  void read(const Take& take);
  // Reads what is left now, then closes.
  void finish(const Take& take);

 private:
  bool read_some(const Take& take);

  UniqueFd fd_;
  std::string partial_;
};

}  // namespace starling
