// The protocol between the launcher and the agent of a host (host_agent.h). It consists of lines on the
// standard input and output of the command that reaches the host.
//
// The agent sends:
//
//   starling-host {"protocol":2, …}       its first line, a HostHello
//   listening PORT [ADDRESS …]            the answer to job; only the first host has addresses
//   reached ADDRESS …                     the answer to reach
//   out RANK TEXT, err RANK TEXT          a line of the rank's output
//   fault RANK {…}                        a fault that the rank reports (fault.h)
//   step RANK STEP                        when the rank has started to train, and when it ends
//   exit RANK STATUS, kill RANK SIGNAL    the end of the rank
//   warn TEXT                             a warning
//   refuse CODE TEXT                      the agent cannot continue; CODE is the number of an ErrorCode
//   alive                                 the answer to alive
//
// The launcher sends:
//
//   job {…}              a HostJob; it contains the key, which is on no command line
//   reach ADDRESS …      to all hosts except the first, which listens at these addresses
//   go PORT [ADDRESS]    start the ranks; PORT is MASTER_PORT
//   signal NUMBER 0|1    to all ranks of the host; 1: to their process groups
//   end RANK             kill this rank, which the other ranks consider lost
//   alive                several times in HostJob::silence_ms; asks for an answer
//
// Lines before the first line of the protocol, such as the greeting of a login shell, are skipped. The agent
// ends its ranks if its input ends. It also ends them if either side is silent for too long, for example
// because a cable is unplugged. Silence is allowed while Ctrl-Z has stopped the launcher and the ranks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/security/data_security.h"
#include "starling/net/security/job_key.h"

namespace starling {

constexpr int kHostProtocol = 2;
// The longest line of the protocol. It is longer than a line of a rank (line_reader.h) and its prefix.
constexpr size_t kLongestHostLine = 256 * 1024;

// The first word of a line, and the text behind the space that follows.
struct HostLine {
  std::string_view word, rest;
};
// Splits a line at its first space.
HostLine split_host_line(std::string_view line);
// Returns 3 and "text" for "3 text", and nothing if the line does not start with a number.
std::optional<std::pair<int, std::string_view>> split_number(std::string_view rest);
// Returns the kind of error with this number, or kInternal if there is none.
ErrorCode error_code_of(int number);
// Returns the words of a line, without the white space between them.
std::vector<std::string> words_of_line(std::string_view rest);

// The first line of an agent, by which the launcher recognizes it.
struct HostHello {
  int protocol = kHostProtocol;
  std::string version;    // version of the program
  std::string host_id;    // net/address.h
  std::string host_name;  // the name that the host gives itself
};
// Returns the line, without a newline.
std::string to_line(const HostHello& hello);
// Parses a hello. Returns nothing if the line is not one, for example the greeting of a login shell.
std::optional<HostHello> parse_hello(std::string_view line);

// Describes the ranks that a host must start.
struct HostJob {
  std::string job_id;
  JobKey key;
  std::string folder = {};  // working directory
  std::string program =
      {};  // a path, or a name that the host looks up in PATH; empty: the program of the agent
  std::vector<std::string> argv = {};
  std::vector<std::string> environment = {};  // NAME=VALUE; replaces variables of the host
  std::string run_dir = {};
  std::string interface = {};  // comm.interface
  DataSecurity security = DataSecurity::kNone;
  int first = 0, ranks = 1, world = 1;
  int threads = 0;
  int reach_ms = 3'000, silence_ms = 30'000;
  int dead_after_ms = static_cast<int>(kDeadAfter.count());  // JobIdentity::dead_after
  bool pin = true;
  bool listens = false;  // the agent serves the store of the job
};
// Returns the line, without a newline. It contains the job key.
std::string to_line(const HostJob& job);
// Returns the job in the text behind the word "job". Throws Error(kInternal) if the text is not a job. The
// launcher has the same version as the agent, so its text is valid.
HostJob parse_job(std::string_view rest);

}  // namespace starling
