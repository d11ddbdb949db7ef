// The command that reaches another host, and what it means when it ends.
#pragma once

#include <deque>
#include <exception>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/launch/ranks.h"

namespace starling {

// The text as one word of a POSIX shell.
std::string shell_quoted(const std::string& text);
// The path of a program that a shell would find by the PATH of this environment; a name with a slash is itself. Empty where there
// is none.
std::string find_program(const std::string& name, const std::vector<std::string>& environment);
// The same for what reaches hosts, and for what ranks run; ConfigError with the remedy where there is none.
std::string program_to_reach(const std::string& name, const std::vector<std::string>& environment);
std::string program_to_start(const std::string& name, const std::vector<std::string>& environment);
// localhost, a loopback address, or this machine's own name.
bool is_this_host(const std::string& name);
// What the ranks of other hosts take over from the launcher's environment: the settings of libraries that count.
std::vector<std::string> forwarded_environment(const char* const* environment);

// Keeps the last `most` lines that say something.
void keep_words(std::deque<std::string>& words, const std::string& line, size_t most);
// ": LINE; LINE", or nothing.
std::string last_words(const std::deque<std::string>& words);
// "exit status 255", "signal 9".
std::string end_text(RankEnd end);

// Why `command host …` ended before the program there answered: unknown or unreachable host, or no such program.
Error connection_error(const std::string& command, const std::string& program, const std::string& host,
                       RankEnd end, const std::deque<std::string>& words);

}  // namespace starling
