// What the completion scripts of all shells share.
#pragma once

#include <string>
#include <vector>

#include "starling/run/message/command_page.h"

namespace starling {

// Returns the options of all commands that take an argument, each once, in order.
std::vector<const OptionPage*> options_with_argument(const CommandPage& root);

// Returns the first sentence of a help text, without the default value.
std::string first_sentence(const std::string& text);

// Returns "config show" for the page of "starling config show", and an empty string for the page of
// "starling".
std::string command_words(const CommandPage& page);

}  // namespace starling
