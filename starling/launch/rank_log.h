// RUN_DIR/log/rank-N.log: what a rank wrote to its standard output and error, and how it ended.
#pragma once

#include <deque>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

class RankLog {
 public:
  // No file: only the tail is kept.
  RankLog() = default;
  // Appends to the file at `path`. ConfigError where it cannot be opened.
  explicit RankLog(const std::string& path);

  // Never throws: a full disk silences the file.
  void append(const std::string& line);
  // The last lines, oldest first.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  UniqueFd fd_;
  std::deque<std::string> tail_;
};

// Makes RUN_DIR/log and its parents. ConfigError where that fails.
std::string make_log_folder(const std::string& run_dir);

}  // namespace starling
