// Manual pages in the man(7) format.
#pragma once

#include <string>

#include "starling/run/message/command_page.h"

namespace starling {

// Returns "starling-config-show" for the page of "starling config show".
std::string manual_name(const CommandPage& page);

// Returns the text of a manual page of section 1. `root` is the page of `starling`.
std::string manual_page(const CommandPage& page, const CommandPage& root);

}  // namespace starling
