// What the launcher and the agent of another host (host_agent.h) say to each other: lines over the standard input and output
// of the command that reaches the host.
//
//   the agent                                   the launcher
//   starling-host {"protocol":1, …}             job {…}                  the key among it: never on a command line
//   listening PORT [ADDRESS …]                  reach ADDRESS …          (all but the first host, which alone has addresses)
//   reached ADDRESS …                           go PORT [ADDRESS]        the ranks are started; PORT: MASTER_PORT
//   out RANK TEXT         err RANK TEXT         signal NUMBER 0|1        to all its ranks; 1: to their process groups
//   fault RANK {…}        step RANK STEP
//   exit RANK STATUS      kill RANK SIGNAL
//   warn TEXT             refuse CODE TEXT      it cannot go on: the number of an ErrorCode and why
//   alive                                       alive                    the answer; asked several times in HostJob::silence_ms
//
// What comes before the first line (a login shell's greeting) is skipped. The end of the agent's input ends its ranks; so does silence of
// either side, as when a cable is cut, unless the launcher has stopped the ranks and with them itself (Ctrl-Z).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/net/data_security.h"
#include "starling/net/job_key.h"

namespace starling {

constexpr int kHostProtocol = 1;
// Longer than a line of a rank (line_reader.h) and what stands before it.
constexpr size_t kLongestHostLine = 256 * 1024;

// The first word of a line and what follows the blank behind it.
struct HostLine {
  std::string_view word, rest;
};
HostLine split_host_line(std::string_view line);
// "3 text" → 3 and "text"; nothing where there is no number.
std::optional<std::pair<int, std::string_view>> split_number(std::string_view rest);
std::vector<std::string> words_of_line(std::string_view rest);

struct HostHello {
  int protocol = kHostProtocol;
  std::string version;    // of the program
  std::string host_id;    // net/address.h
  std::string host_name;  // what the host calls itself
};
std::string to_line(const HostHello& hello);
std::optional<HostHello> parse_hello(std::string_view line);

// What the ranks of one host are to do.
struct HostJob {
  std::string job_id;
  JobKey key;
  std::string folder = {};   // working directory
  std::string program = {};  // a path, or a name that the host looks up; empty: the agent's own
  std::vector<std::string> argv = {};
  std::vector<std::string> environment = {};  // NAME=VALUE, over what the host has
  std::string run_dir = {};
  std::string interface = {};  // comm.interface
  DataSecurity security = DataSecurity::kNone;
  int first = 0, ranks = 1, world = 1;
  int threads = 0;
  int reach_ms = 3'000, silence_ms = 30'000;
  bool pin = true;
  bool listens = false;  // serves the store of the job
};
std::string to_line(const HostJob& job);
// Error(kInternal) where it is none: the launcher has the same version.
HostJob parse_job(std::string_view rest);

}  // namespace starling
