// Functions for the command that reaches another host.
#pragma once

#include <deque>
#include <exception>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/launch/ranks.h"

namespace starling {

// Returns the text, quoted as one word of a POSIX shell.
std::string shell_quoted(const std::string& text);
// Returns the path of a program as a shell finds it in the PATH of this environment. A name with a slash is
// returned unchanged. Returns an empty string if there is no such program.
std::string find_program(const std::string& name, const std::vector<std::string>& environment);
// Find the program that reaches hosts, and the program that ranks run. Throw ConfigError with a remedy if
// there is no such program.
std::string program_to_reach(const std::string& name, const std::vector<std::string>& environment);
std::string program_to_start(const std::string& name, const std::vector<std::string>& environment);
// Returns true for localhost, 127.0.0.1, ::1, and the name of this machine with or without its domain.
bool is_this_host(const std::string& name);
// Returns the variables of the launcher's environment that are sent to other hosts: LD_LIBRARY_PATH,
// NO_COLOR, CI, and the settings of OpenMP, numeric libraries, torch and UCX.
std::vector<std::string> forwarded_environment(const char* const* environment);

// Appends a line that is not empty, and keeps the last `most` lines.
void keep_words(std::deque<std::string>& words, const std::string& line, size_t most);
// Returns ": LINE; LINE", or an empty string.
std::string last_words(const std::deque<std::string>& words);
// Returns "exit status 255" or "signal 9".
std::string end_text(RankEnd end);

// Returns the error for a `command host …` that ended before the program on the host answered. `program` is
// the program on the host, and `words` are the last lines that the command printed. The code is kConfig if
// the host cannot run the program (exit status 126 or 127), and otherwise kComm.
Error connection_error(const std::string& command, const std::string& program, const std::string& host,
                       RankEnd end, const std::deque<std::string>& words);

}  // namespace starling
