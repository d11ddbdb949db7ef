// Finds the process that keeps a SQLite database locked.
#pragma once

#include <string>

namespace starling {

// Describes another process of this host that holds a write lock on the database at `path` or on the index of
// its write-ahead log. The text names the remedy:
//   "process 4711, which is stopped, holds its lock: continue the process with `kill -CONT 4711`, or end it
//   with `kill -KILL 4711`"
// Returns "" if no such process is visible. It reads /proc and touches no lock.
std::string describe_lock_holder(const std::string& path);

}  // namespace starling
