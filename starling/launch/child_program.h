// Runs this program as a child process, for commands that run other commands (`starling compare`).
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "starling/base/clock.h"

namespace starling {

struct ChildProgram {
  std::vector<std::string> argv;             // including argv[0]; the executable is this program
  const char* const* environment = nullptr;  // NAME=VALUE strings, terminated by a null pointer
  // Receives each line of standard output. If it returns false, the child gets SIGUSR2, after which a run
  // ends as after its last step. If the child is still there 30 s later, it gets SIGKILL.
  std::function<bool(const std::string& line)> on_line;
};

struct ChildEnd {
  int status = 0;                  // the exit status, or 128 + signal, as in a shell
  bool interrupted = false;        // this process got SIGINT, SIGTERM or SIGHUP and sent SIGTERM to the child
  std::deque<std::string> errors;  // the last lines of standard error, at most 20
};

// Runs the child until it ends, on the calling thread. The child does not outlive the call. A SignalWatch
// takes the signals of this process meanwhile. Throws Error(kInternal) if the child cannot be started.
ChildEnd run_child(const ChildProgram& program, const Clock& clock);

// Returns the path of this program. If the file was replaced after the start, returns /proc/self/exe.
std::string own_program_path();

}  // namespace starling
