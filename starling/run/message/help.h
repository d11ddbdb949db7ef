// Help texts that fit the terminal.
#pragma once

#include <string>

#include "starling/run/message/command_page.h"

namespace starling {

// Returns the help text of a command. No line is longer than `columns` unless a single word is.
std::string help_text(const CommandPage& page, int columns);

// Returns "starling zoo show [OPTIONS] MODEL".
std::string usage_of(const CommandPage& page);

// Returns "-n, --ranks N".
std::string option_names(const OptionPage& option);

}  // namespace starling
