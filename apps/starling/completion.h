// Completion scripts for shells. They contain every command, option and word, so that completion does not
// start the program.
#pragma once

#include <string>

#include "starling/run/message/command_page.h"

namespace starling {

// Each function returns a script for the commands of `root`, the page of `starling`.
std::string bash_completion(const CommandPage& root);
std::string zsh_completion(const CommandPage& root);
std::string fish_completion(const CommandPage& root);

}  // namespace starling
