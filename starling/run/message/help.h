// Help texts that fit the terminal.
#pragma once

#include <string>

#include "starling/run/message/command_page.h"

namespace starling {

// Returns the help text of a command, in lines of at most `columns` columns and at most 110. Longer words and
// the example commands are not broken.
std::string help_text(const CommandPage& page, int columns);

// Returns the usage of a command, for example "starling zoo show [OPTIONS] MODEL".
std::string usage_of(const CommandPage& page);

// Returns the names and the placeholder of an option, for example "-n, --ranks N".
std::string option_names(const OptionPage& option);

}  // namespace starling
