// Sends a text from rank 0 to all ranks.
#pragma once

#include <string>

#include "starling/comm/group.h"

namespace starling {

// Returns rank 0's text on every rank. Collective. Errors: those of Group::broadcast.
std::string broadcast_text(Group& group, std::string text);

}  // namespace starling
