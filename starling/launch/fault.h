// Describes why a rank ended, and finds the first of several faults.
//
// A rank sends its fatal error to the launcher through the pipe STARLING_ERROR_FD, as one line of JSON:
//   {"rank":2,"code":"comm","peer":1,"message":"…"}
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/base/error.h"
#include "starling/launch/environment.h"

namespace starling {

// What is known about the abnormal end of a rank.
struct Fault {
  int rank = -1;
  bool reported = false;  // the rank sent its error, which is in code, message and peer
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  int peer = -1;      // the peer that caused the error, or -1
  int signal = 0;     // the signal that killed the rank, or 0
  int status = -1;    // the exit status of the rank, or -1
  int64_t step = -1;  // the last step that the rank finished, or -1
  std::string host;   // the host of the rank; empty: this host
  std::string
      stuck;  // why the other ranks gave the rank up, so that the launcher ended it; empty: they did not
  bool with_host = false;  // the host was lost; no peer caused the fault, whatever `code` is
};

// Returns the name of a kind in lines and events: "config", "comm", "internal" …
const char* name_of(ErrorCode code);

// Returns the line of an error, with its newline. The line has at most PIPE_BUF (4096) bytes, which a pipe
// accepts in one piece. A longer message is truncated.
std::string fault_line(int rank, const std::exception& error);
// Returns the fault in a line. Returns nothing if the line has another form. The rank in the line is ignored:
// `rank` is the rank that owns the pipe.
std::optional<Fault> parse_fault_line(int rank, std::string_view line);

// Reports to the launcher why this rank ends. Returns false if there is no launcher, or if the launcher has
// ended. The caller must then print the error.
bool report_fatal(const Environment& environment, const std::exception& error);

// A rank that has given up another rank asks the launcher to end that rank. The request is a line in the same
// pipe:
//   {"rank":1,"stuck":0,"message":"…"}
struct StuckRank {
  int rank = -1;
  std::string why;
};
// Returns the line with its newline.
std::string stuck_line(int rank, const StuckRank& stuck);
// Returns nothing if the line has another form.
std::optional<StuckRank> parse_stuck_line(std::string_view line);
// Asks the launcher to end `stuck`. Does nothing if there is no launcher.
void report_stuck(const Environment& environment, int stuck, const std::string& why);

// Returns the fault that caused all other faults. `faults` are in the order in which they were noticed. The
// result is the first fault that is not a consequence (is_consequence()), otherwise the first fault, or null
// if `faults` is empty.
const Fault* first_fault(const std::vector<Fault>& faults);
// Returns true if a rank reports a communication error or a timeout, which another rank may have caused.
bool is_consequence(const Fault& fault);

// Returns the fault as the event that ends the JSON lines on standard output
// (docs/reference/exit-statuses.md), with its newline:
//   {"event":"error","time":…,"code":"comm","message":"…","rank":2}
std::string error_event(const Fault& fault);

// Returns a message such as "rank 2 was killed by signal 9 (SIGKILL) after step 812", with a remedy if one is
// known.
std::string describe(const Fault& fault);

}  // namespace starling
