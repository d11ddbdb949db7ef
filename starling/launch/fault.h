// What ended a rank, and which of several faults came first.
//
// A rank tells the launcher its fatal error over the pipe STARLING_ERROR_FD, as one line of JSON:
//   {"rank":2,"code":"comm","message":"…","peer":1}
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

// One rank's abnormal end, as far as it is known.
struct Fault {
  int rank = -1;
  bool reported = false;  // the rank sent its error; code, message and peer hold it
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  int peer = -1;           // the rank it blames, -1: none
  int signal = 0;          // it was killed by this signal
  int status = -1;         // it exited with this status
  int64_t step = -1;       // the last step it finished, -1: none
  std::string host;        // where it was started; empty: here
  bool with_host = false;  // its whole host was lost: no complaint about a peer, whatever the code
};

const char* name_of(ErrorCode code);

// The line above, with its newline, at most 4096 bytes (a pipe takes it whole); a longer message is cut.
std::string fault_line(int rank, const std::exception& error);
// Nothing where the line is not such a line. The rank in the line is not believed: the pipe it came from says it.
std::optional<Fault> parse_fault_line(int rank, std::string_view line);

// Tells the launcher why this rank ends. False where there is no launcher to tell (or it is gone): then the caller
// prints the error itself.
bool report_fatal(const Environment& environment, const std::exception& error);

// Of `faults`, in the order in which they were noticed, the one that the others follow from: the first that is not a rank's
// complaint about a peer (a communication fault or a timeout), else the first. Null if there are none.
const Fault* first_fault(const std::vector<Fault>& faults);
// True for a rank's complaint about a peer.
bool is_consequence(const Fault& fault);

// "rank 2 was killed by signal 9 (SIGKILL) after step 812" and the like, with the remedy where one is known.
std::string describe(const Fault& fault);

}  // namespace starling
