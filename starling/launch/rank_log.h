// RankLog writes RUN_DIR/log/rank-N.log with the standard output and standard error of a rank, and how the
// rank ended.
#pragma once

#include <deque>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

class RankLog {
 public:
  // Keeps the last lines only and writes no file.
  RankLog() = default;
  // Appends to the file at `path`. Throws ConfigError if the file cannot be opened.
  explicit RankLog(const std::string& path);

  // Appends a line, given without its newline. If the disk is full, nothing more is written to the file.
  void append(const std::string& line);
  // Returns the last lines, the oldest first.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  UniqueFd fd_;
  std::deque<std::string> tail_;
};

// Creates RUN_DIR/log with its parent folders and returns its path. Throws ConfigError on failure.
std::string make_log_folder(const std::string& run_dir);

}  // namespace starling
