// A program of ours as a child process, for commands that run other commands (`starling compare`).
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "starling/base/clock.h"

namespace starling {

struct ChildProgram {
  std::vector<std::string> argv;             // argv[0] included; the program is this one
  const char* const* environment = nullptr;  // NAME=VALUE strings, ended by a null pointer
  // Each line of its standard output. False asks the child to end in order (SIGTERM); it is killed 30 s later.
  std::function<bool(const std::string& line)> on_line;
};

struct ChildEnd {
  int status = 0;                  // as a shell gives it: exit status, or 128 + signal
  bool interrupted = false;        // SIGINT, SIGTERM or SIGHUP came to us and was passed on as SIGTERM
  std::deque<std::string> errors;  // the last lines of its standard error, at most 20
};

// Runs the child to its end, on the calling thread. The child does not survive it. Error(kInternal) where it cannot be started.
ChildEnd run_child(const ChildProgram& program, const Clock& clock);

// Path of the program that runs, by its real name unless the file was replaced since it started.
std::string own_program_path();

}  // namespace starling
